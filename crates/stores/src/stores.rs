//! Which storage a URL means: one client for each bucket or name service, made when it is first asked for and kept.

use crate::call::Patience;
use crate::location::{Kind, Location};
use downpour_formats::{PendingFile, ReadAt, Storage, StreamFile};
use downpour_graph::{Result, Status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

type Known = HashMap<(Kind, String, Option<String>), Arc<dyn Storage>>;

/// All remote storages.
pub struct Stores {
    environment: BTreeMap<String, String>,
    patience: Patience,
    known: Mutex<Known>,
}

/// Puts remote storages behind [`downpour_formats::Files`], with the credentials and settings that this process's
/// environment names. Does nothing when called again.
pub fn install() {
    downpour_formats::storage::install(Arc::new(Stores::new(
        std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }),
    )));
}

/// Without the environment, in which credentials are.
impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stores")
    }
}

impl Stores {
    /// Storages that take credentials and settings from these variables.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>) -> Stores {
        Stores {
            environment: environment.into_iter().collect(),
            patience: Patience::default(),
            known: Mutex::default(),
        }
    }

    /// Repeats requests for so long.
    #[must_use]
    pub fn patience(mut self, patience: Patience) -> Stores {
        self.patience = patience;
        self
    }

    /// The storage that has a path.
    fn of(&self, path: &str) -> Result<Arc<dyn Storage>> {
        let location = Location::parse(path)?;
        let key = (
            location.kind,
            location.store.clone(),
            location.account.clone(),
        );
        let mut known = self.known.lock();
        if let Some(storage) = known.get(&key) {
            return Ok(storage.clone());
        }
        let storage = self.make(&location).map_err(|e| {
            let place = path.split_once("://").map_or(path, |(scheme, _)| scheme);
            Status::new(
                e.code,
                format!("{place}://{}; {}", location.name(), e.message),
            )
        })?;
        known.insert(key, storage.clone());
        Ok(storage)
    }

    fn make(&self, location: &Location) -> Result<Arc<dyn Storage>> {
        match location.kind {
            Kind::Hdfs => crate::hdfs::Hdfs::open(location, self.patience),
            Kind::S3 | Kind::Google | Kind::Azure => {
                crate::object::open(location, &self.environment, self.patience)
            }
        }
    }
}

impl Storage for Stores {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        self.of(path)?.open(path)
    }

    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        self.of(path)?.create(path)
    }

    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.of(path)?.create_stream(path)
    }

    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.of(path)?.append_stream(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (source, target) = (self.of(from)?, self.of(to)?);
        if !Arc::ptr_eq(&source, &target) {
            return Err(Status::unimplemented(format!(
                "Renaming {from} to {to} not implemented: they are in different file systems"
            )));
        }
        source.rename(from, to)
    }

    fn delete(&self, path: &str) -> Result<()> {
        self.of(path)?.delete(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.of(path)?.exists(path)
    }

    fn size(&self, path: &str) -> Result<u64> {
        self.of(path)?.size(path)
    }

    fn create_dir(&self, path: &str) -> Result<()> {
        self.of(path)?.create_dir(path)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        self.of(path)?.remove_dir(path)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.of(dir)?.list(dir)
    }

    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        self.of(pattern)?.glob(pattern)
    }
}
