//! `ckptfs help concepts`: definitions of the terms in help texts and messages.

use super::Context;
use ckptfs_ui::error::Outcome;

/// Output of `ckptfs help concepts`.
const WORDS: &str = "\
checkpoint  The whole tree as it was at one moment, under a number: 1, 2, 3. Making one takes
            an instant, however large the tree is. .snapshots/NUMBER shows it.
tag         A name for a checkpoint, such as v1 or before-refactor.
live        The tree as it is now: the files that you read and write.
latest      The newest checkpoint that somebody asked for.
restore     To make the tree, or some paths of it, what it was at a checkpoint.
guard       The checkpoint that a restore or a merge makes first, of what is there before: so
            nothing is lost by going back.
undo        To take back the last operation: a restore, a merge, a deletion, a tag. redo does
            it again.
pin         A mark on a checkpoint that keeps it from being deleted.
branch      A second tree, in a directory of its own, that begins as a checkpoint of this one.
            What is done there shows here when it is merged.

A first round:
  ckptfs mount ~/project
  cd ~/project
  ckptfs checkpoint --tag before     # then work, and break something
  ckptfs diff before                 # what has changed
  ckptfs restore before              # back; the guard has what was there
  ckptfs undo                        # and forth
";

/// The terms checkpoint, tag, live, latest, restore, guard, undo, pin and branch
#[derive(Debug, clap::Args)]
#[command(long_about = WORDS, help_template = "{about}")]
pub struct Args {}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    Ok(context.out.bytes(WORDS.as_bytes())?)
}
