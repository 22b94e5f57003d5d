//! State of the screen and the selection.

use std::path::PathBuf;

use super::cli_command::CliCommand;
use super::history::{BrowseEntry, History, PAGE, label};
use ckptfs_api::{
    Change, ChangeKind, CheckpointId, CheckpointInfo, TreePath, VerbError, VerbResult, VersionKind,
};
use ckptfs_sys::Kind;
use ckptfs_ui::details;
use ckptfs_ui::output::{Out, escape};
use ckptfs_ui::{changes, listing, time};

/// A part of the screen that can have the focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Checkpoints,
    Files,
    Main,
}

/// A line of the checkpoint list.
pub struct CheckpointRow {
    /// `None`: the live tree.
    pub state: Option<CheckpointInfo>,
    /// In a list of versions: the change from the previous version.
    pub change: Option<VersionKind>,
}

/// Content of the file pane.
pub enum FilePane {
    /// The changes of a state.
    Changes(Vec<Change>),
    /// A directory of a state.
    Tree {
        dir: TreePath,
        entries: Vec<BrowseEntry>,
    },
}

/// A dialog over the rest of the screen.
pub enum Popup {
    Keys,
    /// A message.
    Told(Vec<String>),
    /// A confirmation, with the output of the dry run.
    Confirm {
        deed: CliCommand,
        would: Vec<String>,
    },
    /// An input line.
    Word {
        what: &'static str,
        typed: String,
        then: InputAction,
    },
}

/// The command that an input line completes.
#[derive(Clone, Debug)]
pub enum InputAction {
    Branch(Option<CheckpointId>),
    Tag(CheckpointId),
    Checkpoint,
}

/// Selection and scroll position of a list.
#[derive(Default)]
pub struct ListState {
    pub selected: usize,
    /// The first visible line.
    pub top: usize,
}

impl ListState {
    /// Moves the selection by `by` in a list of `len` lines.
    pub fn step(&mut self, by: isize, len: usize) {
        self.selected = self
            .selected
            .saturating_add_signed(by)
            .min(len.saturating_sub(1));
    }
}

/// State of the screen.
pub struct App {
    pub history: History,
    /// The program that executes other verbs.
    pub program: PathBuf,
    pub rows: Vec<CheckpointRow>,
    pub row: ListState,
    /// The path whose versions the rows list, if any.
    pub versions_of: Option<TreePath>,
    /// Whether older checkpoints may exist that are not loaded.
    has_more: bool,
    pub files: FilePane,
    pub file: ListState,
    /// The two compared states; the second is `None` for the live tree. `None`: no earlier state
    /// exists.
    between: Option<(CheckpointInfo, Option<CheckpointInfo>)>,
    /// Compares with the live tree instead of the previous checkpoint.
    pub to_live: bool,
    pub main: Vec<String>,
    pub main_title: String,
    pub scroll: usize,
    pub pane: Pane,
    pub popup: Option<Popup>,
    /// The last message.
    pub said: String,
    pub quits: bool,
    /// Whether the files, and the main pane, do not match the selection.
    stale: (bool, bool),
}

impl App {
    /// Loads the checkpoints, or the versions of `path`.
    ///
    /// # Errors
    /// Those of the daemon.
    pub fn new(history: History, program: PathBuf, path: Option<TreePath>) -> VerbResult<App> {
        let mut app = App {
            history,
            program,
            rows: Vec::new(),
            row: ListState::default(),
            versions_of: path,
            has_more: false,
            files: FilePane::Changes(Vec::new()),
            file: ListState::default(),
            between: None,
            to_live: false,
            main: Vec::new(),
            main_title: String::new(),
            scroll: 0,
            pane: Pane::Checkpoints,
            popup: None,
            said: "? keys".to_owned(),
            quits: false,
            stale: (true, true),
        };
        app.load()?;
        Ok(app)
    }

    /// Reloads the rows. The selected checkpoint stays selected if it still exists.
    pub fn load(&mut self) -> VerbResult<()> {
        let selected = self.state().map(|state| state.id);
        self.rows = match &self.versions_of {
            Some(path) => {
                let versions = self.history.versions(path)?.into_iter();
                let row = |version: ckptfs_api::VersionInfo| CheckpointRow {
                    state: version.checkpoint,
                    change: Some(version.change),
                };
                self.has_more = false;
                versions.map(row).collect()
            }
            None => {
                let page = self.history.page(None)?;
                self.has_more = page.len() == PAGE;
                let live = CheckpointRow {
                    state: None,
                    change: None,
                };
                std::iter::once(live)
                    .chain(page.into_iter().map(CheckpointRow::of))
                    .collect()
            }
        };
        let at = self
            .rows
            .iter()
            .position(|row| row.state.as_ref().map(|state| state.id) == selected);
        self.row.selected = at.unwrap_or(0);
        self.stale = (true, true);
        Ok(())
    }

    /// Loads older checkpoints when the last row is selected.
    fn load_more(&mut self) -> VerbResult<()> {
        if !self.has_more || self.row.selected + 1 < self.rows.len() {
            return Ok(());
        }
        let oldest = self
            .rows
            .last()
            .and_then(|row| row.state.as_ref())
            .map(|state| state.id);
        let page = self.history.page(oldest)?;
        self.has_more = page.len() == PAGE;
        self.rows.extend(page.into_iter().map(CheckpointRow::of));
        Ok(())
    }

    /// Returns the selected checkpoint; `None`: the live tree.
    pub fn state(&self) -> Option<&CheckpointInfo> {
        self.rows.get(self.row.selected)?.state.as_ref()
    }

    /// Returns the path selected in the file pane, or the path whose versions are listed.
    pub fn path(&self) -> Option<TreePath> {
        let among = match &self.files {
            FilePane::Changes(changes) => {
                changes.get(self.file.selected).map(|change| &change.path)
            }
            FilePane::Tree { entries, .. } => {
                entries.get(self.file.selected).map(|entry| &entry.path)
            }
        };
        let among = among.filter(|_| self.pane != Pane::Checkpoints).cloned();
        among.or_else(|| self.versions_of.clone())
    }

    /// Returns the number of files in the file pane.
    pub fn files_len(&self) -> usize {
        match &self.files {
            FilePane::Changes(changes) => changes.len(),
            FilePane::Tree { entries, .. } => entries.len(),
        }
    }

    /// Returns whether a pane must be read again.
    pub fn is_stale(&self) -> bool {
        self.stale != (false, false)
    }

    /// Invalidates both panes after a change of the selected state or of its presentation.
    pub fn state_changed(&mut self) {
        self.file = ListState::default();
        self.stale = (true, true);
    }

    /// Invalidates the main pane after a change of the selected file or pane.
    pub fn file_changed(&mut self) {
        self.scroll = 0;
        self.stale.1 = true;
    }

    /// Displays an error.
    pub fn tell(&mut self, told: VerbResult<()>) {
        if let Err(VerbError { message, hint, .. }) = told {
            self.popup = Some(Popup::Told(std::iter::once(message).chain(hint).collect()));
        }
    }

    /// Reads the stale panes; if none is stale, checks for new checkpoints.
    pub fn read(&mut self) {
        let (files, main) = std::mem::take(&mut self.stale);
        let told = match (files, main) {
            (false, false) => self.look_for_new(),
            _ => self
                .load_more()
                .and_then(|()| if files { self.read_files() } else { Ok(()) }),
        };
        self.tell(told);
        if files || main {
            match self.read_main() {
                Ok(main) => self.main = main,
                Err(error) => self.main = vec![error.message],
            }
        }
    }

    /// Reloads the rows if the newest checkpoint has changed.
    fn look_for_new(&mut self) -> VerbResult<()> {
        if self.versions_of.is_some() || self.popup.is_some() {
            return Ok(());
        }
        let newest = self.history.newest()?;
        let known = self
            .rows
            .get(1)
            .and_then(|row| row.state.as_ref())
            .map(|state| state.id);
        if newest != known { self.load() } else { Ok(()) }
    }

    /// Returns the two states to compare.
    fn compared(&mut self) -> VerbResult<Option<(CheckpointInfo, Option<CheckpointInfo>)>> {
        let state = self.state().cloned();
        let before = match state {
            Some(state) if self.to_live => return Ok(Some((state, None))),
            // Compare adjacent versions of a path.
            _ if self.versions_of.is_some() => {
                let before = self.rows.get(self.row.selected + 1);
                before.and_then(|row| row.state.clone())
            }
            _ => self.history.before(state.as_ref())?,
        };
        Ok(before.map(|before| (before, state)))
    }

    fn read_files(&mut self) -> VerbResult<()> {
        if let FilePane::Tree { dir, .. } = &self.files {
            let dir = dir.clone();
            return self.open(dir);
        }
        self.between = self.compared()?;
        let mut changes = match &self.between {
            Some((from, to)) => {
                let to = to.as_ref().map(|to| to.id);
                self.history.changes(from.id, to)?
            }
            None => Vec::new(),
        };
        if let Some(path) = &self.versions_of {
            changes.retain(|change| changes::is_below(change, std::slice::from_ref(path)));
        }
        self.files = FilePane::Changes(changes);
        self.file.step(0, self.files_len());
        Ok(())
    }

    /// Lists a directory of the selected state.
    pub fn open(&mut self, dir: TreePath) -> VerbResult<()> {
        // Fall back to the root, which exists in every state.
        let entries = self.history.list(self.state(), &dir);
        let (dir, entries) = match entries {
            Ok(entries) => (dir, entries),
            Err(_) => {
                let root = TreePath(Vec::new());
                let entries = self.history.list(self.state(), &root)?;
                (root, entries)
            }
        };
        self.files = FilePane::Tree { dir, entries };
        self.file.step(0, self.files_len());
        Ok(())
    }

    fn read_main(&mut self) -> VerbResult<Vec<String>> {
        if self.pane == Pane::Checkpoints && self.versions_of.is_none() {
            self.main_title = "Checkpoint".to_owned();
            return Ok(self
                .state()
                .map_or_else(|| vec!["the tree as it is now".to_owned()], told));
        }
        let state = self.state().cloned();
        match &self.files {
            FilePane::Changes(changes) => {
                self.main_title = "Changes".to_owned();
                match (changes.get(self.file.selected), &self.between) {
                    (Some(change), Some((from, to))) => {
                        self.history.patch(change, from, to.as_ref())
                    }
                    _ => Ok(Vec::new()),
                }
            }
            FilePane::Tree { entries, .. } => match entries.get(self.file.selected) {
                Some(entry) => {
                    self.main_title = escape(&entry.path.0);
                    self.history.content(state.as_ref(), &entry.path)
                }
                None => Ok(Vec::new()),
            },
        }
    }

    /// Returns the lines of the file pane.
    pub fn file_lines(&self) -> Vec<(String, Option<ChangeKind>)> {
        match &self.files {
            FilePane::Changes(changes) => {
                let line = |change: &Change| {
                    let path = escape(&change.path.0);
                    let from = change.from.as_ref().map(|from| escape(&from.0) + " -> ");
                    let text = format!(
                        "{} {}{path}",
                        change.change.letter(),
                        from.unwrap_or_default()
                    );
                    (text, Some(change.change))
                };
                changes.iter().map(line).collect()
            }
            FilePane::Tree { entries, .. } => {
                let line = |entry: &BrowseEntry| (label(&entry.path, entry.kind), None);
                entries.iter().map(line).collect()
            }
        }
    }

    /// Returns the lines of the checkpoint pane.
    pub fn row_lines(&self) -> Vec<String> {
        let width = self.rows.iter().filter_map(|row| row.state.as_ref());
        let width = width
            .map(|state| state.id.to_string().len())
            .max()
            .unwrap_or(4)
            .max(4);
        let line = |row: &CheckpointRow| {
            let change = row.change.map_or(String::new(), |change| {
                format!("{change:?} ").to_lowercase()
            });
            match &row.state {
                None => format!("{:>width$}  {change}", "live"),
                Some(state) => {
                    let id = state.id.to_string();
                    let remarks = listing::remarks(&Out::to_memory(0), state);
                    let text = format!(
                        "{id:>width$}  {}  {change}{remarks}",
                        time::local(&state.created)
                    );
                    escape(text.as_bytes())
                }
            }
        };
        self.rows.iter().map(line).collect()
    }

    /// Returns the type of the selected file.
    pub fn file_kind(&self) -> Option<Kind> {
        match &self.files {
            FilePane::Changes(changes) => changes.get(self.file.selected).map(|change| change.kind),
            FilePane::Tree { entries, .. } => entries.get(self.file.selected)?.kind,
        }
    }
}

impl CheckpointRow {
    fn of(state: CheckpointInfo) -> CheckpointRow {
        CheckpointRow {
            state: Some(state),
            change: None,
        }
    }
}

/// Returns the description of a checkpoint.
fn told(state: &CheckpointInfo) -> Vec<String> {
    let mut out = Out::to_memory(1 << 16);
    // Output beyond this size is truncated.
    let _ = details::print(&mut out, state);
    let (bytes, _) = out.kept();
    bytes.split(|byte| *byte == b'\n').map(escape).collect()
}
