//! inotify on the mount reports changes made through it and those of a restore. Inode numbers and
//! times, which watchers and indexers remember, stay the same across remounts.

mod programs;
mod races;
mod restored;
mod same_files;
mod support;
mod through;
