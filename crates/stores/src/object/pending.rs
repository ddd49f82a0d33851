//! An object under construction: kept while it is small, sent in parts as it grows. Parts are invisible until all
//! appear together under the object's name; what a crash leaves of them is the business of the bucket's own rules.

use super::Objects;
use crate::call::{Failure, Outcome, runtime, wait};
use bytes::Bytes;
use downpour_formats::PendingFile;
use downpour_graph::{Code, Result, Status};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Bytes of a part, and what the largest object has that is put at once.
pub(super) const PART: usize = 8 << 20;
/// Parts under way at once.
const AT_ONCE: usize = 4;
/// After so many parts they become twice as large: a store takes ten thousand.
const SAME_SIZE: usize = 1000;
/// How long one who gives up waits for the store to forget the parts.
const ABORT: Duration = Duration::from_secs(10);

/// Parts of an object on their way.
#[derive(Debug, Clone)]
pub(super) struct Upload {
    objects: Objects,
    path: Arc<str>,
    at: Path,
    id: Arc<str>,
    /// What was there before, so that an object that appeared is told from it.
    before: Option<String>,
}

impl Upload {
    /// Begins one; to be called again when it fails in passing, which leaves nothing visible.
    pub(super) async fn begin(objects: Objects, path: &str, at: &Path) -> Outcome<Upload> {
        let before = match objects.bucket.head(at).await {
            Ok(meta) => meta.e_tag,
            Err(object_store::Error::NotFound { .. }) => None,
            Err(e) => return Err(objects.words.failure(path, &e)),
        };
        let id = objects.bucket.create_multipart(at).await;
        let id = id.map_err(|e| objects.words.failure(path, &e))?;
        Ok(Upload {
            path: path.into(),
            at: at.clone(),
            id: id.into(),
            before,
            objects,
        })
    }

    fn failure(&self, error: &object_store::Error) -> Failure {
        self.objects.words.failure(&self.path, error)
    }

    /// Sends a part, in place of one of the same number if that was sent before.
    pub(super) async fn part(&self, number: usize, bytes: Bytes) -> Outcome<PartId> {
        let (bucket, id) = (&self.objects.bucket, self.id.to_string());
        let sent = bucket.put_part(&self.at, &id, number, PutPayload::from(bytes));
        sent.await.map_err(|e| self.failure(&e))
    }

    /// Makes the parts an object of so many bytes.
    pub(super) async fn complete(&self, parts: Vec<PartId>, len: u64) -> Outcome<()> {
        let (bucket, id) = (&self.objects.bucket, self.id.to_string());
        match bucket.complete_multipart(&self.at, &id, parts).await {
            Ok(_) => Ok(()),
            Err(e) => {
                // An earlier try may have succeeded without an answer: then the parts are gone, and the object is new.
                let failure = self.failure(&e);
                match bucket.head(&self.at).await {
                    Ok(meta) if meta.size == len && meta.e_tag != self.before => Ok(()),
                    _ => Err(failure),
                }
            }
        }
    }

    async fn abort(self) {
        let id = self.id.to_string();
        // The store keeps invisible parts until it is told, or its rules say so.
        let _ = self.objects.bucket.abort_multipart(&self.at, &id).await;
    }
}

type Sent = JoinHandle<Result<PartId>>;

/// An object under construction.
#[derive(Debug)]
pub(super) struct ObjectPending {
    objects: Objects,
    path: String,
    at: Path,
    /// What no part has yet.
    rest: Vec<u8>,
    upload: Option<Upload>,
    under_way: VecDeque<Sent>,
    parts: Vec<PartId>,
    sent: usize,
    len: u64,
}

impl ObjectPending {
    pub(super) fn new(objects: Objects, path: &str, at: Path) -> ObjectPending {
        ObjectPending {
            objects,
            path: path.to_owned(),
            at,
            rest: Vec::new(),
            upload: None,
            under_way: VecDeque::new(),
            parts: Vec::new(),
            sent: 0,
            len: 0,
        }
    }

    fn part_size(&self) -> usize {
        PART << (self.sent / SAME_SIZE).min(8)
    }

    /// Sends what is there as the next part.
    fn send(&mut self) -> Result<()> {
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let (objects, at, path) =
                    (self.objects.clone(), self.at.clone(), self.path.clone());
                let begin = move |_| {
                    let (objects, path, at) = (objects.clone(), path.clone(), at.clone());
                    async move { Upload::begin(objects, &path, &at).await }
                };
                let upload = self.objects.caller.call(&self.path, begin)?;
                self.upload.insert(upload).clone()
            }
        };
        let bytes = Bytes::from(std::mem::take(&mut self.rest));
        let (number, path) = (self.sent, self.path.clone());
        self.sent += 1;
        while self.under_way.len() >= AT_ONCE {
            self.receive()?;
        }
        let caller = self.objects.caller.clone();
        self.under_way.push_back(runtime()?.spawn(async move {
            let send = |_| upload.part(number, bytes.clone());
            caller.repeat(&path, send).await
        }));
        Ok(())
    }

    /// Waits for the oldest part that is under way.
    fn receive(&mut self) -> Result<()> {
        if let Some(oldest) = self.under_way.pop_front() {
            let part = wait(async move {
                let joined = oldest.await;
                joined.unwrap_or_else(|_| Err(Status::internal("a part of an object was lost")))
            })?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// Gives a small object its name in one request.
    fn put(&mut self, is_new: bool) -> Result<()> {
        let bytes = Bytes::from(std::mem::take(&mut self.rest));
        let (objects, at, path) = (self.objects.clone(), self.at.clone(), self.path.clone());
        self.objects.caller.call(&self.path, move |tries| {
            let (objects, at) = (objects.clone(), at.clone());
            let (path, bytes) = (path.clone(), bytes.clone());
            async move { put(&objects, &path, &at, bytes, is_new, tries).await }
        })
    }

    fn finish(&mut self, is_new: bool) -> Result<()> {
        self.seal()?;
        let Some(upload) = self.upload.clone() else {
            return self.put(is_new);
        };
        let (parts, len) = (std::mem::take(&mut self.parts), self.len);
        self.objects.caller.call(&self.path, move |_| {
            let (upload, parts) = (upload.clone(), parts.clone());
            async move { upload.complete(parts, len).await }
        })?;
        self.upload = None;
        Ok(())
    }
}

/// Puts an object. One that must be new is refused if another is there, unless it is this one, put by an earlier try.
async fn put(
    objects: &Objects,
    path: &str,
    at: &Path,
    bytes: Bytes,
    is_new: bool,
    tries: u32,
) -> Outcome<()> {
    let options = PutOptions::from(match is_new {
        true => PutMode::Create,
        false => PutMode::Overwrite,
    });
    let put = objects
        .bucket
        .put_opts(at, bytes.clone().into(), options)
        .await;
    let Err(e) = put else {
        return Ok(());
    };
    let failure = objects.words.failure(path, &e);
    match failure.status.code {
        Code::AlreadyExists if tries > 0 => {
            let there = objects.bucket.get(at).await;
            let there = there.map_err(|e| objects.words.failure(path, &e))?;
            let there = there.bytes().await;
            match there.map_err(|e| objects.words.failure(path, &e))? == bytes {
                true => Ok(()),
                false => Err(failure),
            }
        }
        // A store without conditions: the object that was there has been deleted a moment ago.
        Code::Unimplemented if is_new => {
            let put = objects.bucket.put(at, bytes.into()).await;
            put.map(|_| ()).map_err(|e| objects.words.failure(path, &e))
        }
        _ => Err(failure),
    }
}

impl PendingFile for ObjectPending {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.len += data.len() as u64;
        let mut data = data;
        loop {
            let room = self.part_size() - self.rest.len().min(self.part_size());
            let (now, later) = data.split_at(room.min(data.len()));
            self.rest.extend_from_slice(now);
            data = later;
            // A part goes when more follows: an object of exactly one is put at once.
            if data.is_empty() {
                return Ok(());
            }
            self.send()?;
        }
    }

    fn seal(&mut self) -> Result<()> {
        if self.upload.is_some() && !self.rest.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        self.finish(false)
    }

    fn publish_new(mut self: Box<Self>) -> Result<()> {
        self.finish(true)
    }
}

impl Drop for ObjectPending {
    fn drop(&mut self) {
        for part in self.under_way.drain(..) {
            part.abort();
        }
        if let (Some(upload), Ok(runtime)) = (self.upload.take(), runtime()) {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(ABORT, upload.abort()).await;
            });
        }
    }
}
