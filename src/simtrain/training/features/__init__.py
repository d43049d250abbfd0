"""What goes along with training, one file each."""
