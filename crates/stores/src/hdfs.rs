//! Files in HDFS, whose name services and mount tables Hadoop's own configuration files describe. A file is written
//! under a temporary name and renamed, which a NameNode does at once; a file that grows is appended to, and closed after
//! each flush: readers do not see the block that is being written.

#![expect(
    clippy::large_futures,
    reason = "the client's own; the runtime keeps each on the heap"
)]

use crate::call::{Caller, Failure, Outcome, Patience, runtime, wait};
use crate::location::Location;
use crate::read::{Pieces, RemoteFile, Source, Work};
use crate::stream::{RemoteStream, Sink};
use bytes::Bytes;
use downpour_formats::{PendingFile, ReadAt, Storage, StreamFile};
use downpour_graph::{Code, Result, Status};
use futures_util::StreamExt as _;
use hdfs_native::client::FileStatus;
use hdfs_native::file::{FileReader, FileWriter};
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};
use parking_lot::Mutex;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Where NameNodes listen unless a URL or the configuration says otherwise.
const PORT: u16 = 8020;
/// What is gathered before it goes to a DataNode; a file no larger is written in one go, which can be repeated.
const GATHERED: usize = 8 << 20;
/// Permissions of directories, before the cluster's own mask.
const DIRECTORY: u32 = 0o755;
/// How often a file whose writer was lost is looked after.
const RECOVERY: Duration = Duration::from_millis(300);
/// How often a growing file is appended to at most.
const APPEND_PAUSE: Duration = Duration::from_secs(2);
/// The client's own repetitions, which only see to it that all NameNodes of a service are tried.
const FAILOVER: [(&str, &str); 3] = [
    ("dfs.client.failover.max.attempts", "3"),
    ("dfs.client.failover.sleep.base.millis", "100"),
    ("dfs.client.failover.sleep.max.millis", "500"),
];

/// A name service or mount table.
#[derive(Debug, Clone)]
pub(crate) struct Hdfs {
    client: Client,
    caller: Caller,
}

impl Hdfs {
    pub(crate) fn open(location: &Location, patience: Patience) -> Result<Arc<dyn Storage>> {
        let build = |url: &str| {
            let builder = ClientBuilder::new().with_url(url).with_config(FAILOVER);
            let builder = builder.with_io_runtime(runtime()?.clone());
            builder.build().map_err(|e| failure("", &e).status)
        };
        let url = location.store.as_str();
        let client = match build(url) {
            Err(e) if e.message.contains("No NameNode hosts") && url.starts_with("hdfs://") => {
                build(&format!("{url}:{PORT}"))
            }
            Err(e) if location.name().is_empty() => Err(Status::invalid_argument(format!(
                "the URL names no NameNode, and no default is known: set fs.defaultFS in core-site.xml of HADOOP_CONF_DIR ({})",
                e.message
            ))),
            built => built,
        }?;
        Ok(Arc::new(Hdfs {
            client,
            caller: Caller::new(patience),
        }))
    }

    fn ask<T, F, W>(&self, path: &str, request: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(Client, String, u32) -> W + Send + 'static,
        W: Future<Output = hdfs_native::Result<T>> + Send,
    {
        let (client, at, shown) = (self.client.clone(), key(path)?, path.to_owned());
        self.caller.call(path, move |tries| {
            let asked = request(client.clone(), at.clone(), tries);
            let shown = shown.clone();
            async move { asked.await.map_err(|e| failure(&shown, &e)) }
        })
    }

    /// What is at a path.
    fn look(&self, path: &str) -> Result<Option<FileStatus>> {
        self.ask(path, |client, at, _| async move {
            match client.get_file_info(&at).await {
                Err(HdfsError::FileNotFound(_)) => Ok(None),
                found => found.map(Some),
            }
        })
    }
}

/// A path as NameNodes know it.
fn key(path: &str) -> Result<String> {
    Ok(format!("/{}", Location::parse(path)?.key))
}

fn missing(path: &str) -> Status {
    Status::not_found(format!("{path}; No such file or directory"))
}

/// What a failed request about a path is to its caller.
fn failure(path: &str, error: &HdfsError) -> Failure {
    let with = |code: Code, text: &str| {
        let line = text.lines().next().unwrap_or_default();
        Status::new(
            code,
            match path {
                "" => line.to_owned(),
                path => format!("{path}; {line}"),
            },
        )
    };
    match error {
        HdfsError::FileNotFound(_) => with(Code::NotFound, "No such file or directory").into(),
        HdfsError::AlreadyExists(_) => with(Code::AlreadyExists, "File exists").into(),
        HdfsError::IsADirectoryError(_) => with(Code::FailedPrecondition, "Is a directory").into(),
        HdfsError::IOError(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // A name that does not resolve, or a configuration file that is not there.
            Failure::passing(with(Code::Unavailable, &e.to_string()))
        }
        HdfsError::IOError(e) => Failure::passing(with(Code::Unavailable, &e.to_string())),
        HdfsError::DataTransferError(why) => Failure::passing(with(Code::Unavailable, why)),
        HdfsError::BlocksNotFound(_) => {
            Failure::passing(with(Code::Unavailable, "no DataNode has a block of it now"))
        }
        HdfsError::ChecksumError => with(Code::DataLoss, "a block's checksum is wrong").into(),
        HdfsError::RPCError(class, why) | HdfsError::FatalRPCError(class, why) => {
            let class = class.rsplit(['.', '$']).next().unwrap_or(class);
            let code = match class {
                "SafeModeException"
                | "RetriableException"
                | "StandbyException"
                | "NotReplicatedYetException"
                | "RetryStartFileException" => {
                    return Failure::passing(with(Code::Unavailable, &format!("{class}: {why}")));
                }
                "AccessControlException" | "AuthorizationException" | "InvalidToken" => {
                    Code::PermissionDenied
                }
                "FileNotFoundException" => return missing(path).into(),
                "FileAlreadyExistsException" => Code::AlreadyExists,
                "PathIsNotEmptyDirectoryException" | "ParentNotDirectoryException" => {
                    Code::FailedPrecondition
                }
                "DSQuotaExceededException" | "NSQuotaExceededException" => Code::ResourceExhausted,
                _ => Code::Unknown,
            };
            with(code, &format!("{class}: {why}")).into()
        }
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => with(
            Code::Unauthenticated,
            "the NameNode does not accept how this user shows who it is",
        )
        .into(),
        HdfsError::InvalidArgument(why) => with(Code::InvalidArgument, why).into(),
        other => with(Code::Unknown, &other.to_string()).into(),
    }
}

impl Storage for Hdfs {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        let reader = self.ask(path, |client, at, _| async move {
            // A directory is told by its status only.
            if client.get_file_info(&at).await?.isdir {
                return Err(HdfsError::IsADirectoryError(at));
            }
            client.read(&at).await
        })?;
        let length = reader.file_length() as u64;
        let source = HdfsFile {
            hdfs: self.clone(),
            path: path.to_owned(),
            at: key(path)?,
            reader: Arc::new(Mutex::new(Arc::new(reader))),
        };
        let file = RemoteFile::new(Arc::new(source), self.caller.clone(), path, length);
        Ok(Box::new(file))
    }

    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        let target = key(path)?;
        let random = RandomState::new().build_hasher().finish();
        Ok(Box::new(HdfsPending {
            hdfs: self.clone(),
            path: path.to_owned(),
            temp: format!("{target}.tempstate{random}"),
            target,
            gathered: Vec::new(),
            writer: None,
            is_written: false,
            is_there: false,
        }))
    }

    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.ask(path, |client, at, _| async move {
            client.create(&at, overwriting()).await?.close().await
        })?;
        let sink = Appended {
            hdfs: self.clone(),
            path: path.to_owned(),
            at: key(path)?,
            durable: 0,
        };
        let stream = RemoteStream::new(sink, self.caller.clone(), path)?;
        Ok(Box::new(stream))
    }

    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        let Some(there) = self.look(path)? else {
            return self.create_stream(path);
        };
        let sink = Appended {
            hdfs: self.clone(),
            path: path.to_owned(),
            at: key(path)?,
            durable: there.length as u64,
        };
        let stream = RemoteStream::new(sink, self.caller.clone(), path)?;
        Ok(Box::new(stream))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let target = key(to)?;
        self.ask(from, move |client, at, tries| {
            let target = target.clone();
            async move { rename(&client, &at, &target, true, tries).await }
        })
    }

    fn delete(&self, path: &str) -> Result<()> {
        let is_deleted = self.ask(path, |client, at, tries| async move {
            // An earlier try may have done it without an answer.
            Ok(client.delete(&at, false).await? || tries > 0)
        })?;
        match is_deleted {
            true => Ok(()),
            false => Err(missing(path)),
        }
    }

    fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.look(path)?.is_some())
    }

    fn size(&self, path: &str) -> Result<u64> {
        let there = self.look(path)?.ok_or_else(|| missing(path))?;
        Ok(there.length as u64)
    }

    fn create_dir(&self, path: &str) -> Result<()> {
        if self.exists(path)? {
            return Err(Status::already_exists(format!("{path}; File exists")));
        }
        self.ask(path, |client, at, _| async move {
            client.mkdirs(&at, DIRECTORY, false).await
        })
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        self.delete(path)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let found = self.ask(dir, |client, at, _| async move {
            client.list_status(&at, false).await
        })?;
        let name = |found: &FileStatus| Some(found.path.rsplit_once('/')?.1.to_owned());
        let mut names: Vec<String> = found.iter().filter_map(name).collect();
        names.sort();
        Ok(names)
    }
}

fn overwriting() -> WriteOptions {
    WriteOptions::default().overwrite(true).create_parent(false)
}

/// Renames, and recognises that an earlier try has.
async fn rename(
    client: &Client,
    from: &str,
    to: &str,
    overwrite: bool,
    tries: u32,
) -> hdfs_native::Result<()> {
    let renamed = client.rename(from, to, overwrite).await;
    match renamed {
        Err(HdfsError::FileNotFound(_) | HdfsError::RPCError(..)) if tries > 0 => {
            let is_gone = client.get_file_info(from).await;
            match is_gone {
                Err(HdfsError::FileNotFound(_)) => client.get_file_info(to).await.map(|_| ()),
                _ => renamed,
            }
        }
        other => other,
    }
}

/// A file that is read.
struct HdfsFile {
    hdfs: Hdfs,
    path: String,
    at: String,
    /// With the places of the blocks that there were when it was opened.
    reader: Arc<Mutex<Arc<FileReader>>>,
}

impl fmt::Debug for HdfsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HdfsFile({})", self.path)
    }
}

impl HdfsFile {
    fn reopen(&self) -> Work<Arc<FileReader>> {
        let (client, held) = (self.hdfs.client.clone(), self.reader.clone());
        let (path, at) = (self.path.clone(), self.at.clone());
        Box::pin(async move {
            let reader = client.read(&at).await.map_err(|e| failure(&path, &e))?;
            let reader = Arc::new(reader);
            *held.lock() = reader.clone();
            Ok(reader)
        })
    }
}

impl Source for HdfsFile {
    fn fetch(&self, range: Range<u64>) -> Work<Bytes> {
        let (reopen, reopen_after) = (self.reopen(), self.reopen());
        let path = self.path.clone();
        let reader = self.reader.lock().clone();
        Box::pin(async move {
            let is_within = |reader: &FileReader| range.end <= reader.file_length() as u64;
            let reader = match is_within(&reader) {
                true => reader,
                false => reopen.await?,
            };
            if !is_within(&reader) {
                return Err(Status::data_loss(format!("{path}; it became shorter")).into());
            }
            let (from, len) = (range.start as usize, (range.end - range.start) as usize);
            match reader.read_range(from, len).await {
                Ok(bytes) => Ok(bytes),
                Err(e) => {
                    // Its blocks may be elsewhere by now: the next try has their new places.
                    let _ = reopen_after.await;
                    Err(failure(&path, &e))
                }
            }
        })
    }

    fn stream(&self, range: Range<u64>) -> Work<Pieces> {
        let (reopen, path) = (self.reopen(), self.path.clone());
        let reader = self.reader.lock().clone();
        Box::pin(async move {
            let is_within = |reader: &FileReader| range.end <= reader.file_length() as u64;
            let reader = match is_within(&reader) {
                true => reader,
                false => reopen.await?,
            };
            if !is_within(&reader) {
                return Err(Status::data_loss(format!("{path}; it became shorter")).into());
            }
            let (from, len) = (range.start as usize, (range.end - range.start) as usize);
            let pieces = reader.read_range_stream(from, len);
            Ok(Box::pin(pieces.map(move |piece| piece.map_err(|e| failure(&path, &e)))) as Pieces)
        })
    }

    fn length(&self) -> Work<u64> {
        let reopen = self.reopen();
        Box::pin(async move { Ok(reopen.await?.file_length() as u64) })
    }
}

/// A file under construction.
struct HdfsPending {
    hdfs: Hdfs,
    path: String,
    target: String,
    temp: String,
    /// What no DataNode has yet.
    gathered: Vec<u8>,
    /// The temporary file, once it is too large to be gathered.
    writer: Option<FileWriter>,
    /// Whether the temporary file has everything.
    is_written: bool,
    /// Whether there may be a temporary file.
    is_there: bool,
}

impl fmt::Debug for HdfsPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HdfsPending({})", self.path)
    }
}

impl HdfsPending {
    /// Sends what is gathered on.
    fn send(&mut self) -> Result<()> {
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                self.is_there = true;
                let temp = self.temp.clone();
                self.hdfs.ask(&self.path, move |client, _, _| {
                    let temp = temp.clone();
                    async move { client.create(&temp, overwriting()).await }
                })?
            }
        };
        let bytes = Bytes::from(std::mem::take(&mut self.gathered));
        let path = self.path.clone();
        self.writer = Some(wait(async move {
            writer
                .write_bytes(bytes)
                .await
                .map_err(|e| broken(&path, &e))?;
            Ok(writer)
        })?);
        Ok(())
    }

    fn finish(&mut self, overwrite: bool) -> Result<()> {
        self.seal()?;
        let (temp, target) = (self.temp.clone(), self.target.clone());
        self.hdfs.ask(&self.path, move |client, _, tries| {
            let (temp, target) = (temp.clone(), target.clone());
            async move { rename(&client, &temp, &target, overwrite, tries).await }
        })?;
        self.is_there = false;
        Ok(())
    }
}

/// A large file's writing cannot be taken up where it broke off: it is for the caller to begin anew.
fn broken(path: &str, error: &HdfsError) -> Status {
    let Failure {
        status,
        is_transient,
    } = failure(path, error);
    match is_transient {
        true => Status::new(
            Code::DeadlineExceeded,
            format!("{}; writing it was broken off", status.message),
        ),
        false => status,
    }
}

/// Writes a small file in one go.
async fn write_whole(client: &Client, temp: &str, bytes: Bytes) -> hdfs_native::Result<()> {
    let mut writer = client.create(temp, overwriting()).await?;
    writer.write_bytes(bytes).await?;
    writer.close().await
}

impl PendingFile for HdfsPending {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.is_written = false;
        let mut data = data;
        loop {
            let room = GATHERED - self.gathered.len();
            let (now, later) = data.split_at(room.min(data.len()));
            self.gathered.extend_from_slice(now);
            data = later;
            if data.is_empty() {
                return Ok(());
            }
            self.send()?;
        }
    }

    fn seal(&mut self) -> Result<()> {
        if self.is_written {
            return Ok(());
        }
        if self.writer.is_none() {
            self.is_there = true;
            let bytes = Bytes::from(self.gathered.clone());
            let temp = self.temp.clone();
            self.hdfs.ask(&self.path, move |client, _, _| {
                let (temp, bytes) = (temp.clone(), bytes.clone());
                async move { write_whole(&client, &temp, bytes).await }
            })?;
        } else {
            self.send()?;
            if let Some(mut writer) = self.writer.take() {
                let path = self.path.clone();
                wait(async move { writer.close().await.map_err(|e| broken(&path, &e)) })?;
            }
        }
        self.is_written = true;
        Ok(())
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        self.finish(true)
    }

    fn publish_new(mut self: Box<Self>) -> Result<()> {
        self.finish(false)
    }
}

impl Drop for HdfsPending {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.is_there, runtime()) {
            let (client, temp) = (self.hdfs.client.clone(), self.temp.clone());
            let writer = self.writer.take();
            runtime.spawn(async move {
                drop(writer);
                // Best effort: what stays has a name that no reader looks at.
                let _ = client.delete(&temp, false).await;
            });
        }
    }
}

/// A file that grows. What it has before each append is compared with what is known to be stored: an earlier try may
/// have stored some of the bytes, or all.
struct Appended {
    hdfs: Hdfs,
    path: String,
    at: String,
    /// Bytes that are known to be stored.
    durable: u64,
}

impl fmt::Debug for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Appended({})", self.path)
    }
}

impl Appended {
    /// A writer behind what is stored, and how many of the bytes that were to follow are stored too.
    async fn writer(&mut self) -> hdfs_native::Result<(FileWriter, usize)> {
        let client = &self.hdfs.client;
        while !client.recover_lease(&self.at).await? {
            tokio::time::sleep(RECOVERY).await;
        }
        let length = client.get_file_info(&self.at).await?.length as u64;
        let Some(more) = length.checked_sub(self.durable) else {
            let why = format!("{} bytes are left of {}", length, self.durable);
            return Err(HdfsError::OperationFailed(why));
        };
        let writer = client.append(&self.at).await?;
        Ok((writer, usize::try_from(more).unwrap_or(usize::MAX)))
    }

    async fn append(&mut self, bytes: &Bytes) -> hdfs_native::Result<()> {
        let (mut writer, stored) = self.writer().await?;
        let rest = bytes.slice(stored.min(bytes.len())..);
        if !rest.is_empty() {
            writer.write_bytes(rest).await?;
            writer.hsync().await?;
        }
        writer.close().await?;
        self.durable += bytes.len() as u64;
        Ok(())
    }
}

impl Sink for Appended {
    async fn store(&mut self, bytes: &Bytes) -> Outcome<()> {
        let stored = self.append(bytes).await;
        stored.map_err(|e| failure(&self.path, &e))
    }

    fn pause(&self) -> Duration {
        APPEND_PAUSE
    }
}
