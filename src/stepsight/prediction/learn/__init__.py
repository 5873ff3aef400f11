"""What a cluster's own runs say about its parts."""
