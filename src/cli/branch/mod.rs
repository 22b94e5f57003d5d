//! `ckptfs branch`.

mod git;
