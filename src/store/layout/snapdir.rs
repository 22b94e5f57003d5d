//! The name of a tree's snapshot directory. A tree may have an entry with the usual name, such as
//! the snapshots of another tool; a mount can then choose another. The name is in a file of the
//! store, where the next mount and the commands find it.

use super::super::at;
use super::Layout;
use crate::error::{StoreError, StoreResult};
use ckptfs_api::{SNAPDIR, SNAPDIR_FILE, noted_snapdir};

impl Layout {
    /// Stores the name for the next mount; durable on return, except a change back to the usual
    /// name.
    ///
    /// # Errors
    /// Those of write(2), fsync(2), rename(2) and unlink(2).
    pub fn note_snapdir(&self, name: &str) -> StoreResult<()> {
        let noted = noted_snapdir(&self.dir);
        if noted.as_deref().unwrap_or(SNAPDIR) == name {
            return Ok(());
        }
        let failed = StoreError::io("write", SNAPDIR_FILE);
        if name == SNAPDIR {
            return at::remove_tree(&self.dir, SNAPDIR_FILE.as_bytes()).map_err(failed);
        }
        at::write_whole(&self.dir, SNAPDIR_FILE, name.as_bytes()).map_err(failed)
    }
}
