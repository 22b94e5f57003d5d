//! Watchers: inotify on the mount sees what is changed through it and what a restore changes; and
//! what watchers and indexers remember of a file, its number and times, stays the same over
//! remounts.

mod programs;
mod races;
mod restored;
mod same_files;
mod support;
mod through;
