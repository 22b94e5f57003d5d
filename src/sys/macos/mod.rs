//! macOS: to come.
