//! Memory of the daemon for each inode that the kernel knows.
