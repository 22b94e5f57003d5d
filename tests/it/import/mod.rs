//! Existing trees brought in: new trees and trees that are there, again after changes, after a
//! kill, the same content once, and what is left out.

mod again;
mod contents;
mod fresh;
mod killed;
mod left;
mod support;
