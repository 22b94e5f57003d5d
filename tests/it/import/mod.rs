//! Import of existing trees: into new and existing trees, repeated after changes or a kill, with
//! shared contents, and with files left out.

mod contents;
mod files_left_out;
mod fresh;
mod killed;
mod reimport;
mod support;
