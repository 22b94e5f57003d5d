//! What is on the screen, and what is selected.

use super::deed::Deed;
use super::history::{Entry, History, PAGE, label};
use crate::engine::api::{
    Change, ChangeKind, CheckpointInfo, TreePath, VerbError, VerbResult, VersionKind,
};
use crate::store::ids::CheckpointId;
use crate::sys::Kind;

use super::super::output::{Out, escape};
use super::super::{changes, listing, show, time};

/// A part of the screen that keys go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Checkpoints,
    Files,
    Main,
}

/// A line among the checkpoints.
pub struct Row {
    /// `None`: the tree as it is now.
    pub state: Option<CheckpointInfo>,
    /// Among versions of a path: how it differs from the one before.
    pub change: Option<VersionKind>,
}

/// What there is of a state.
pub enum Files {
    /// What it changed.
    Changes(Vec<Change>),
    /// A directory of it.
    Tree { dir: TreePath, entries: Vec<Entry> },
}

/// What covers the rest of the screen until it is answered.
pub enum Popup {
    Keys,
    /// What was said.
    Told(Vec<String>),
    /// What would be done, and whether it is to be.
    Confirm {
        deed: Deed,
        would: Vec<String>,
    },
    /// A word that is needed; what is done with it.
    Word {
        what: &'static str,
        typed: String,
        then: Then,
    },
}

/// What a word is needed for.
#[derive(Clone, Debug)]
pub enum Then {
    Branch(Option<CheckpointId>),
    Tag(CheckpointId),
    Checkpoint,
}

/// Which of a list is selected.
#[derive(Default)]
pub struct List {
    pub selected: usize,
    /// The first line that is shown.
    pub top: usize,
}

impl List {
    /// Goes on by so many lines of `len`.
    pub fn step(&mut self, by: isize, len: usize) {
        self.selected = self
            .selected
            .saturating_add_signed(by)
            .min(len.saturating_sub(1));
    }
}

/// See the module.
pub struct App {
    pub history: History,
    pub rows: Vec<Row>,
    pub row: List,
    /// Of this path the rows are the versions.
    pub versions_of: Option<TreePath>,
    /// There may be older checkpoints that were not asked for.
    has_more: bool,
    pub files: Files,
    pub file: List,
    /// The changes are from this checkpoint to this state; `None`: there are none.
    between: Option<(CheckpointInfo, Option<CheckpointInfo>)>,
    /// Changes are told up to the tree as it is now, and not since the checkpoint before.
    pub to_live: bool,
    pub main: Vec<String>,
    pub main_title: String,
    pub scroll: usize,
    pub pane: Pane,
    pub popup: Option<Popup>,
    /// The last thing that was said.
    pub said: String,
    pub quits: bool,
    /// Files, and what is in the main pane, are not of what is selected.
    stale: (bool, bool),
}

impl App {
    /// # Errors
    /// Those of asking the daemon.
    pub fn new(history: History, path: Option<TreePath>) -> VerbResult<App> {
        let mut app = App {
            history,
            rows: Vec::new(),
            row: List::default(),
            versions_of: path,
            has_more: false,
            files: Files::Changes(Vec::new()),
            file: List::default(),
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

    /// Asks for the rows anew; the same checkpoint stays selected if it is there.
    pub fn load(&mut self) -> VerbResult<()> {
        let selected = self.state().map(|state| state.id);
        self.rows = match &self.versions_of {
            Some(path) => {
                let versions = self.history.versions(path)?.into_iter();
                let row = |version: crate::engine::api::VersionInfo| Row {
                    state: version.checkpoint,
                    change: Some(version.change),
                };
                self.has_more = false;
                versions.map(row).collect()
            }
            None => {
                let page = self.history.page(None)?;
                self.has_more = page.len() == PAGE;
                let live = Row {
                    state: None,
                    change: None,
                };
                std::iter::once(live)
                    .chain(page.into_iter().map(Row::of))
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

    /// Older checkpoints, once the last that is known is selected.
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
        self.rows.extend(page.into_iter().map(Row::of));
        Ok(())
    }

    /// The checkpoint that is selected; `None`: the tree as it is now.
    pub fn state(&self) -> Option<&CheckpointInfo> {
        self.rows.get(self.row.selected)?.state.as_ref()
    }

    /// The path that is selected among the files, or whose versions are shown.
    pub fn path(&self) -> Option<TreePath> {
        let among = match &self.files {
            Files::Changes(changes) => changes.get(self.file.selected).map(|change| &change.path),
            Files::Tree { entries, .. } => entries.get(self.file.selected).map(|entry| &entry.path),
        };
        let among = among.filter(|_| self.pane != Pane::Checkpoints).cloned();
        among.or_else(|| self.versions_of.clone())
    }

    /// How many files there are to select from.
    pub fn files_len(&self) -> usize {
        match &self.files {
            Files::Changes(changes) => changes.len(),
            Files::Tree { entries, .. } => entries.len(),
        }
    }

    /// Something that is shown is to be read yet.
    pub fn is_stale(&self) -> bool {
        self.stale != (false, false)
    }

    /// Another state is selected, or something else is asked of it.
    pub fn state_changed(&mut self) {
        self.file = List::default();
        self.stale = (true, true);
    }

    /// Another file is selected, or another pane.
    pub fn file_changed(&mut self) {
        self.scroll = 0;
        self.stale.1 = true;
    }

    /// What went wrong is said.
    pub fn tell(&mut self, told: VerbResult<()>) {
        if let Err(VerbError { message, hint, .. }) = told {
            self.popup = Some(Popup::Told(std::iter::once(message).chain(hint).collect()));
        }
    }

    /// Reads what is selected; with nothing to read, what has come since.
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

    /// Checkpoints that were made, or went, since.
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

    /// From which checkpoint to which state the changes are that are told.
    fn compared(&mut self) -> VerbResult<Option<(CheckpointInfo, Option<CheckpointInfo>)>> {
        let state = self.state().cloned();
        let before = match state {
            Some(state) if self.to_live => return Ok(Some((state, None))),
            // From one version of a path to the next.
            _ if self.versions_of.is_some() => {
                let before = self.rows.get(self.row.selected + 1);
                before.and_then(|row| row.state.clone())
            }
            _ => self.history.before(state.as_ref())?,
        };
        Ok(before.map(|before| (before, state)))
    }

    fn read_files(&mut self) -> VerbResult<()> {
        if let Files::Tree { dir, .. } = &self.files {
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
        self.files = Files::Changes(changes);
        self.file.step(0, self.files_len());
        Ok(())
    }

    /// Lists a directory of the selected state.
    pub fn open(&mut self, dir: TreePath) -> VerbResult<()> {
        // It may not have been there then: the root always was.
        let entries = self.history.list(self.state(), &dir);
        let (dir, entries) = match entries {
            Ok(entries) => (dir, entries),
            Err(_) => {
                let root = TreePath(Vec::new());
                let entries = self.history.list(self.state(), &root)?;
                (root, entries)
            }
        };
        self.files = Files::Tree { dir, entries };
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
            Files::Changes(changes) => {
                self.main_title = "Changes".to_owned();
                match (changes.get(self.file.selected), &self.between) {
                    (Some(change), Some((from, to))) => {
                        self.history.patch(change, from, to.as_ref())
                    }
                    _ => Ok(Vec::new()),
                }
            }
            Files::Tree { entries, .. } => match entries.get(self.file.selected) {
                Some(entry) => {
                    self.main_title = escape(&entry.path.0);
                    self.history.content(state.as_ref(), &entry.path)
                }
                None => Ok(Vec::new()),
            },
        }
    }

    /// Lines of the files, as they are shown.
    pub fn file_lines(&self) -> Vec<(String, Option<ChangeKind>)> {
        match &self.files {
            Files::Changes(changes) => {
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
            Files::Tree { entries, .. } => {
                let line = |entry: &Entry| (label(&entry.path, entry.kind), None);
                entries.iter().map(line).collect()
            }
        }
    }

    /// Lines of the checkpoints, as they are shown.
    pub fn row_lines(&self) -> Vec<String> {
        let width = self.rows.iter().filter_map(|row| row.state.as_ref());
        let width = width
            .map(|state| state.id.to_string().len())
            .max()
            .unwrap_or(4)
            .max(4);
        let line = |row: &Row| {
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

    /// What the selected file is.
    pub fn file_kind(&self) -> Option<Kind> {
        match &self.files {
            Files::Changes(changes) => changes.get(self.file.selected).map(|change| change.kind),
            Files::Tree { entries, .. } => entries.get(self.file.selected)?.kind,
        }
    }
}

impl Row {
    fn of(state: CheckpointInfo) -> Row {
        Row {
            state: Some(state),
            change: None,
        }
    }
}

/// What there is to say of a checkpoint.
fn told(state: &CheckpointInfo) -> Vec<String> {
    let mut out = Out::to_memory(1 << 16);
    // A memory of so much has room for it, or shows the beginning.
    let _ = show::print(&mut out, state);
    let (bytes, _) = out.kept();
    bytes.split(|byte| *byte == b'\n').map(escape).collect()
}
