//! The real program: what it prints, where, and how it exits.

mod guide;
mod history;
mod mounted;
mod plain;
mod run;
mod support;
