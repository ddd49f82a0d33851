//! Files as objects of S3, Google Cloud Storage and Azure. An object appears whole or not at all, so no temporary name
//! is needed: a small file is one put, a large one is sent in parts that appear together. Directories are only names:
//! one is there while something is below it. A rename is a copy and a deletion.

mod error;
mod pending;

// Named in the manifest for its features alone: TLS by ring.
use crate::call::{Caller, Failure, Outcome, Patience};
use crate::location::{Kind, Location};
use crate::profile::{self, Environment};
use crate::read::{Pieces, RemoteFile, Source, Work};
use crate::stream::{RemoteStream, Sink};
use bytes::Bytes;
use downpour_formats::{PendingFile, ReadAt, Storage, StreamFile};
use downpour_graph::{Code, Result, Status};
use error::Words;
use futures_util::StreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, ObjectStore, ObjectStoreExt as _, RetryConfig,
};
use pending::{ObjectPending, PART, Upload};
use reqwest as _;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

/// An address that nothing answers at is told from a slow one sooner than all patience ends.
const CONNECT: Duration = Duration::from_secs(3);
/// What one request copies at most within S3; more is read and written.
const LARGEST_COPY: u64 = 5 << 30;
/// The least pause between two rewritings of an object that grows,
const REWRITE_PAUSE: Duration = Duration::from_secs(1);
/// and what the pause of a larger one amounts to: so much of it a second.
const REWRITE_RATE: u64 = 4 << 20;

/// What is asked of a client.
pub(crate) trait Bucket: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Bucket for T {}

/// One bucket.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    bucket: Arc<dyn Bucket>,
    caller: Caller,
    words: Words,
}

/// The client of a bucket.
pub(crate) fn open(
    location: &Location,
    environment: &Environment,
    patience: Patience,
) -> Result<Arc<dyn Storage>> {
    // Whoever else brings a provider of cryptography to this process may have been here first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let words = Words::new(&location.store, environment);
    let bucket = client(location, environment);
    let bucket = bucket.map_err(|e| match e {
        Refused::Status(status) => status,
        Refused::Client(e) => words.failure("", &e).status,
    })?;
    Ok(Arc::new(Objects {
        bucket,
        caller: Caller::new(patience),
        words,
    }))
}

enum Refused {
    Status(Status),
    Client(object_store::Error),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Status(status)
    }
}

impl From<object_store::Error> for Refused {
    fn from(e: object_store::Error) -> Refused {
        Refused::Client(e)
    }
}

fn client(
    location: &Location,
    environment: &Environment,
) -> std::result::Result<Arc<dyn Bucket>, Refused> {
    // Requests are repeated here, for every kind alike.
    let retry = RetryConfig {
        max_retries: 0,
        backoff: BackoffConfig::default(),
        ..RetryConfig::default()
    };
    let options = ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_timeout_disabled();
    let name = location.store.as_str();
    let prefixed = |prefix: &'static str| {
        let matching = environment
            .iter()
            .filter(move |(k, _)| k.starts_with(prefix));
        matching.map(|(k, v)| (k.to_ascii_lowercase(), v.as_str()))
    };
    Ok(match location.kind {
        Kind::Google => {
            let mut builder = GoogleCloudStorageBuilder::new();
            for (key, value) in prefixed("GOOGLE_") {
                if let Ok(key) = key.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            let builder = builder.with_retry(retry).with_client_options(options);
            Arc::new(builder.with_bucket_name(name).build()?)
        }
        Kind::Azure => {
            let mut builder = MicrosoftAzureBuilder::new();
            for (key, value) in prefixed("AZURE_") {
                if let Ok(key) = key.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            if let Some(account) = &location.account {
                builder = builder.with_account(account);
            }
            let builder = builder.with_retry(retry).with_client_options(options);
            Arc::new(builder.with_container_name(name).build()?)
        }
        _ => Arc::new(s3(environment, name, retry, options)?.build()?),
    })
}

fn s3(
    environment: &Environment,
    name: &str,
    retry: RetryConfig,
    options: ClientOptions,
) -> Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new();
    let profile = profile::settings(environment)?;
    let mut endpoint = profile.get("endpoint_url").cloned();
    for (key, value) in &profile {
        let key = match key.as_str() {
            "aws_access_key_id" => AmazonS3ConfigKey::AccessKeyId,
            "aws_secret_access_key" => AmazonS3ConfigKey::SecretAccessKey,
            "aws_session_token" => AmazonS3ConfigKey::Token,
            "region" => AmazonS3ConfigKey::Region,
            _ => continue,
        };
        builder = builder.with_config(key, value);
    }
    for (key, value) in environment.iter().filter(|(k, _)| k.starts_with("AWS_")) {
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    let of = |name: &str| environment.get(name).filter(|v| !v.is_empty()).cloned();
    // What TensorFlow's own client reads.
    if let Some(host) = of("S3_ENDPOINT") {
        let is_plain = of("S3_USE_HTTPS").is_some_and(|v| v == "0" || v == "false");
        endpoint = Some(match host.contains("://") {
            true => host,
            false => format!("http{}://{host}", if is_plain { "" } else { "s" }),
        });
    }
    if let (Some(region), None) = (of("S3_REGION"), of("AWS_REGION")) {
        builder = builder.with_region(region);
    }
    let endpoint = of("AWS_ENDPOINT_URL_S3")
        .or(of("AWS_ENDPOINT_URL"))
        .or(of("AWS_ENDPOINT"))
        .or(endpoint);
    let mut options = options;
    if let Some(endpoint) = endpoint {
        // Whoever writes http:// means it.
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_endpoint(endpoint);
    }
    let builder = builder.with_client_options(options).with_retry(retry);
    Ok(builder.with_bucket_name(name))
}

/// The key of a path.
fn key(path: &str) -> Result<Path> {
    let location = Location::parse(path)?;
    Path::parse(&location.key)
        .map_err(|_| Status::invalid_argument(format!("{path}; not a key that objects can have")))
}

impl Objects {
    /// Makes a request of the client.
    fn ask<T, F, W>(&self, path: &str, request: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(Arc<dyn Bucket>, u32) -> W + Send + 'static,
        W: Future<Output = object_store::Result<T>> + Send,
    {
        let (bucket, words) = (self.bucket.clone(), self.words.clone());
        let shown = path.to_owned();
        self.caller.call(path, move |tries| {
            let asked = request(bucket.clone(), tries);
            let (words, shown) = (words.clone(), shown.clone());
            async move { asked.await.map_err(|e| words.failure(&shown, &e)) }
        })
    }

    fn length(&self, path: &str) -> Result<u64> {
        let at = key(path)?;
        self.ask(path, move |bucket, _| {
            let at = at.clone();
            async move { Ok(bucket.head(&at).await?.size) }
        })
    }

    /// Whether anything is below a path.
    fn has_below(&self, path: &str) -> Result<bool> {
        let at = key(path)?;
        self.ask(path, move |bucket, _| {
            let at = at.clone();
            async move {
                let mut below = bucket.list(Some(&at).filter(|at| !at.as_ref().is_empty()));
                below.next().await.transpose().map(|first| first.is_some())
            }
        })
    }

    fn is_root(path: &str) -> Result<bool> {
        Ok(key(path)?.as_ref().is_empty())
    }

    /// Copies what is too large for one request of the store.
    fn copy_through(&self, from: &str, to: &str, len: u64) -> Result<()> {
        let source = self.open(from)?;
        let mut target = self.create(to)?;
        let mut buf = vec![0; PART];
        let mut at = 0;
        while at < len {
            let n = source.read_at(at, &mut buf)?;
            if n == 0 {
                return Err(Status::data_loss(format!(
                    "{from}; it shrank while it was copied"
                )));
            }
            target.write(buf.get(..n).unwrap_or_default())?;
            at += n as u64;
        }
        target.publish()
    }
}

impl Storage for Objects {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        let at = key(path)?;
        let length = match self.length(path) {
            Err(e) if e.code == Code::NotFound && self.has_below(path)? => {
                return Err(Status::failed_precondition(format!(
                    "{path}; Is a directory"
                )));
            }
            length => length?,
        };
        let source = Object {
            objects: self.clone(),
            path: path.to_owned(),
            at,
        };
        let file = RemoteFile::new(Arc::new(source), self.caller.clone(), path, length);
        Ok(Box::new(file))
    }

    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        let at = key(path)?;
        if at.as_ref().is_empty() {
            return Err(Status::failed_precondition(format!(
                "{path}; Is a directory"
            )));
        }
        Ok(Box::new(ObjectPending::new(self.clone(), path, at)))
    }

    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        let at = key(path)?;
        let none = Bytes::new();
        let (objects, to) = (self.clone(), at.clone());
        // An object that cannot be made is told of now, and an empty one is there at once, as a local file would be.
        self.ask(path, move |bucket, _| {
            let (to, none) = (to.clone(), none.clone());
            async move { bucket.put(&to, none.into()).await.map(|_| ()) }
        })?;
        let sink = Rewritten::new(objects, path, at, 0)?;
        let stream = RemoteStream::new(sink, self.caller.clone(), path)?;
        Ok(Box::new(stream))
    }

    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        let old = match self.open(path) {
            Err(e) if e.code == Code::NotFound => return self.create_stream(path),
            old => old?,
        };
        let len = old.len()?;
        let sink = Rewritten::new(self.clone(), path, key(path)?, len)?;
        let mut buf = vec![0; PART];
        let mut at = 0;
        while at < len {
            let n = old.read_at(at, &mut buf)?;
            let kept = sink.kept.write_all_at(buf.get(..n).unwrap_or_default(), at);
            kept.map_err(|e| downpour_formats::storage::io_status(path, &e))?;
            at += n.max(1) as u64;
        }
        let stream = RemoteStream::new(sink, self.caller.clone(), path)?;
        Ok(Box::new(stream))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (source, target) = (key(from)?, key(to)?);
        let len = self.length(from)?;
        if len > LARGEST_COPY {
            self.copy_through(from, to, len)?;
        } else {
            let source = source.clone();
            self.ask(from, move |bucket, _| {
                let (source, target) = (source.clone(), target.clone());
                async move { bucket.copy(&source, &target).await }
            })?;
        }
        self.delete(from)
    }

    fn delete(&self, path: &str) -> Result<()> {
        let at = key(path)?;
        self.ask(path, move |bucket, tries| {
            let at = at.clone();
            async move {
                match bucket.delete(&at).await {
                    // An earlier try did it, and its answer was lost.
                    Err(object_store::Error::NotFound { .. }) if tries > 0 => Ok(()),
                    other => other,
                }
            }
        })
    }

    fn exists(&self, path: &str) -> Result<bool> {
        if Objects::is_root(path)? {
            return self.has_below(path).map(|_| true);
        }
        match self.length(path) {
            Err(e) if e.code == Code::NotFound => self.has_below(path),
            length => length.map(|_| true),
        }
    }

    fn size(&self, path: &str) -> Result<u64> {
        match self.length(path) {
            Err(e) if e.code == Code::NotFound && self.has_below(path)? => Ok(0),
            length => length,
        }
    }

    fn create_dir(&self, path: &str) -> Result<()> {
        // It is there as soon as something is in it; to ask first would cost two requests at every save.
        key(path).map(|_| ())
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        match self.has_below(path)? {
            true => Err(Status::failed_precondition(format!(
                "{path}; Directory not empty"
            ))),
            false => Ok(()),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let at = key(dir)?;
        let is_root = at.as_ref().is_empty();
        let listed = self.ask(dir, move |bucket, _| {
            let at = at.clone();
            async move {
                let below = Some(&at).filter(|at| !at.as_ref().is_empty());
                bucket.list_with_delimiter(below).await
            }
        })?;
        let folders = listed.common_prefixes.iter();
        let files = listed.objects.iter().map(|object| &object.location);
        let names = folders.chain(files).filter_map(|path| path.filename());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        if names.is_empty() && !is_root {
            return Err(Status::not_found(format!(
                "{dir}; No such file or directory"
            )));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// An object that is read.
#[derive(Debug)]
struct Object {
    objects: Objects,
    path: String,
    at: Path,
}

impl Source for Object {
    fn fetch(&self, range: std::ops::Range<u64>) -> Work<Bytes> {
        let (objects, path, at) = (self.objects.clone(), self.path.clone(), self.at.clone());
        Box::pin(async move {
            let got = objects.bucket.get_range(&at, range).await;
            got.map_err(|e| objects.words.failure(&path, &e))
        })
    }

    fn stream(&self, range: std::ops::Range<u64>) -> Work<Pieces> {
        let (objects, path, at) = (self.objects.clone(), self.path.clone(), self.at.clone());
        Box::pin(async move {
            let options = GetOptions::new().with_range(Some(range));
            let got = objects.bucket.get_opts(&at, options).await;
            let got = got.map_err(|e| objects.words.failure(&path, &e))?;
            let words = objects.words.clone();
            let pieces = got.into_stream();
            Ok(
                Box::pin(pieces.map(move |piece| piece.map_err(|e| words.failure(&path, &e))))
                    as Pieces,
            )
        })
    }

    fn length(&self) -> Work<u64> {
        let (objects, path, at) = (self.objects.clone(), self.path.clone(), self.at.clone());
        Box::pin(async move {
            let head = objects.bucket.head(&at).await;
            Ok(head.map_err(|e| objects.words.failure(&path, &e))?.size)
        })
    }
}

/// An object that grows, which objects cannot: it is put anew with all that it has, as of a flush. What it has is
/// kept in a file without a name on this machine.
#[derive(Debug)]
struct Rewritten {
    objects: Objects,
    path: String,
    at: Path,
    kept: File,
    len: u64,
}

impl Rewritten {
    fn new(objects: Objects, path: &str, at: Path, len: u64) -> Result<Rewritten> {
        let kept = tempfile::tempfile();
        Ok(Rewritten {
            objects,
            path: path.to_owned(),
            at,
            kept: kept.map_err(|e| downpour_formats::storage::io_status(path, &e))?,
            len,
        })
    }

    fn read(&self, at: u64, len: usize) -> Outcome<Bytes> {
        let mut buf = vec![0; len];
        let read = self.kept.read_exact_at(&mut buf, at);
        read.map_err(|e| Failure::lasting(downpour_formats::storage::io_status(&self.path, &e)))?;
        Ok(Bytes::from(buf))
    }
}

impl Sink for Rewritten {
    async fn store(&mut self, bytes: &Bytes) -> Outcome<()> {
        let kept = self.kept.write_all_at(bytes, self.len);
        kept.map_err(|e| Failure::lasting(downpour_formats::storage::io_status(&self.path, &e)))?;
        let len = self.len + bytes.len() as u64;
        let failure = |e: object_store::Error| self.objects.words.failure(&self.path, &e);
        let bucket = &self.objects.bucket;
        if len <= PART as u64 {
            let all = self.read(0, usize::try_from(len).unwrap_or(usize::MAX))?;
            bucket.put(&self.at, all.into()).await.map_err(failure)?;
        } else {
            let upload = Upload::begin(self.objects.clone(), &self.path, &self.at).await?;
            let mut parts = Vec::new();
            let mut at = 0;
            while at < len {
                let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(PART);
                parts.push(upload.part(parts.len(), self.read(at, n)?).await?);
                at += n as u64;
            }
            upload.complete(parts, len).await?;
        }
        self.len = len;
        Ok(())
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(self.len / REWRITE_RATE).max(REWRITE_PAUSE)
    }
}

#[cfg(test)]
mod tests;
