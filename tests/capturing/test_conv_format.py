"""Convolutions leave their results in the format a GPU's library would."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from stepsight.capturing.calls import Facts  # noqa: E402
from stepsight.capturing.recorder import as_on_gpu  # noqa: E402


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_channels_last_images_give_channels_last_results(device: str, last: bool) -> None:
    with FakeTensorMode(), torch.no_grad():
        image = torch.empty(2, 8, 6, 6, device=device)
        if last:
            image = image.to(memory_format=torch.channels_last)
        arguments = (image, torch.empty(16, 8, 2, 2, device=device))
        plain = torch.empty(2, 16, 3, 3, device=device)
        made = as_on_gpu("convolution", arguments, plain, Facts(lambda t: 0))
    assert (made.stride(1) == 1) == (last and device == "cuda")
