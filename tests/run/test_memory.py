from stepsight.run.worker import with_huge_pages


def test_the_heap_of_a_rank_lies_in_huge_pages():
    assert with_huge_pages("") == "glibc.malloc.hugetlb=1"


def test_other_tunables_are_kept():
    assert with_huge_pages("glibc.malloc.arena_max=2") == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


def test_who_says_something_of_huge_pages_is_heard():
    assert with_huge_pages("glibc.malloc.hugetlb=0") == "glibc.malloc.hugetlb=0"
