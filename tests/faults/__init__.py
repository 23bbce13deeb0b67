"""What a broker does when its peers, its disk, its settings or its process fail."""
