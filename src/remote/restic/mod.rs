//! Checkpoints as snapshots of a repository that restic and rustic read.
