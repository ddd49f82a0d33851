//! Files on HDFS over its REST: what a job's containers need is put there, and removed when the job is over.

use crate::http::{Answer, Body, HttpError, ask, escaped};
use std::fs::File;

/// A file as containers find it again: changed or replaced, it is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Where it is, as in `hdfs://nn:9000/apps/x`.
    pub url: String,
    /// How long it is.
    pub length: u64,
    /// When it was changed, in milliseconds.
    pub modified: i64,
}

impl FileStatus {
    /// As in `hdfs`.
    pub fn scheme(&self) -> &str {
        self.url.split_once("://").map_or("", |(scheme, _)| scheme)
    }

    fn rest(&self) -> (&str, &str) {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        rest.split_at(rest.find('/').unwrap_or(rest.len()))
    }

    /// The host, and the port if there is one.
    pub fn authority(&self) -> (&str, Option<u16>) {
        let (authority, _) = self.rest();
        match authority
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse()))
        {
            Some((host, Ok(port))) => (host, Some(port)),
            _ => (authority, None),
        }
    }

    /// The path there.
    pub fn path(&self) -> &str {
        self.rest().1
    }
}

/// A file system of a cluster.
#[derive(Clone, Debug)]
pub struct WebHdfs {
    name_nodes: Vec<String>,
    file_system: String,
    user: String,
}

impl WebHdfs {
    /// Behind these name nodes (`host:port` of their web), of which one is active.
    pub fn new(name_nodes: Vec<String>, file_system: &str, user: &str) -> WebHdfs {
        WebHdfs {
            name_nodes,
            file_system: file_system.to_owned(),
            user: user.to_owned(),
        }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.file_system)
    }

    /// Asks one name node after the other.
    fn ask(&self, method: &str, path: &str, query: &str) -> Result<Answer, HttpError> {
        let mut last = HttpError {
            url: self.url(path),
            reason: "no name node's web address is known".to_owned(),
        };
        for node in &self.name_nodes {
            let user = escaped(&self.user, "");
            let url = format!(
                "http://{node}/webhdfs/v1{}?user.name={user}&{query}",
                escaped(path, "/")
            );
            match ask(method, &url, &Body::None) {
                // A name node that is on standby refuses.
                Ok(answer) if answer.status == 403 && answer.reason().contains("standby") => {}
                Ok(answer) => return Ok(answer),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn wrong(&self, path: &str, reason: String) -> HttpError {
        HttpError {
            url: self.url(path),
            reason,
        }
    }

    fn checked(&self, path: &str, answer: Answer) -> Result<Answer, HttpError> {
        match answer.is_success() {
            true => Ok(answer),
            false => Err(self.wrong(path, answer.reason())),
        }
    }

    /// Makes a folder that only this user can use.
    pub fn make_dir(&self, path: &str) -> Result<(), HttpError> {
        let answer = self.ask("PUT", path, "op=MKDIRS&permission=700")?;
        self.checked(path, answer).map(drop)
    }

    /// Writes a file whose text is short.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<FileStatus, HttpError> {
        self.put(path, &Body::Bytes(bytes), "600")
    }

    /// Brings a file.
    pub fn bring(
        &self,
        path: &str,
        file: &File,
        is_program: bool,
    ) -> Result<FileStatus, HttpError> {
        self.put(
            path,
            &Body::File(file),
            if is_program { "700" } else { "600" },
        )
    }

    fn put(&self, path: &str, body: &Body<'_>, mode: &str) -> Result<FileStatus, HttpError> {
        let query = format!("op=CREATE&overwrite=true&permission={mode}");
        let answer = self.ask("PUT", path, &query)?;
        let place = match answer.status {
            307 => answer.location.clone(),
            _ => None,
        };
        let place = place.ok_or_else(|| self.wrong(path, answer.reason()))?;
        let answer = ask("PUT", &place, body)?;
        self.checked(path, answer)?;
        self.status(path)?
            .ok_or_else(|| self.wrong(path, "it is gone".to_owned()))
    }

    /// What is known of a file; nothing if there is none.
    pub fn status(&self, path: &str) -> Result<Option<FileStatus>, HttpError> {
        let answer = self.ask("GET", path, "op=GETFILESTATUS")?;
        if answer.status == 404 {
            return Ok(None);
        }
        let answer = self.checked(path, answer)?;
        let said: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let said = &said["FileStatus"];
        match (said["length"].as_u64(), said["modificationTime"].as_i64()) {
            (Some(length), Some(modified)) => Ok(Some(FileStatus {
                url: self.url(path),
                length,
                modified,
            })),
            _ => Err(self.wrong(path, "the answer says nothing of it".to_owned())),
        }
    }

    /// Reads a file whose text is short; nothing if there is none.
    pub fn read(&self, path: &str) -> Result<Option<Vec<u8>>, HttpError> {
        let answer = self.ask("GET", path, "op=OPEN")?;
        let answer = match (answer.status, &answer.location) {
            (404, _) => return Ok(None),
            (307, Some(place)) => ask("GET", place, &Body::None)?,
            _ => answer,
        };
        Ok(Some(self.checked(path, answer)?.body))
    }

    /// Removes a folder with all that is in it. That there is none is fine.
    pub fn remove(&self, path: &str) -> Result<(), HttpError> {
        let answer = self.ask("DELETE", path, "op=DELETE&recursive=true")?;
        self.checked(path, answer).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url_are_found() {
        let file = |url: &str| FileStatus {
            url: url.to_owned(),
            length: 0,
            modified: 0,
        };
        let parts = |url: &str| {
            let file = file(url);
            let (host, port) = file.authority();
            (
                file.scheme().to_owned(),
                host.to_owned(),
                port,
                file.path().to_owned(),
            )
        };
        let made =
            |s: &str, h: &str, p, path: &str| (s.to_owned(), h.to_owned(), p, path.to_owned());
        assert_eq!(
            parts("hdfs://nn:9000/a/b"),
            made("hdfs", "nn", Some(9000), "/a/b")
        );
        assert_eq!(parts("hdfs://big/a"), made("hdfs", "big", None, "/a"));
        assert_eq!(parts("x"), made("", "", None, ""));
    }
}
