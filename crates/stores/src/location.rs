//! What a URL means: which kind of storage, which one of them, and where in it. Nothing here asks anybody. A URL may
//! name no credentials: all of the machine can read a command line, and errors repeat paths.

use downpour_graph::{Result, Status};

/// A kind of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    S3,
    Google,
    Azure,
    Hdfs,
}

/// What a path means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: Kind,
    /// The bucket or container; for HDFS `scheme://authority`.
    pub(crate) store: String,
    /// Azure's account, where the URL names one.
    pub(crate) account: Option<String>,
    /// What comes behind it, without slashes at its ends or repeated ones; empty for the root.
    pub(crate) key: String,
}

/// The schemes that there are, and what each means.
const SCHEMES: &[(&str, Kind)] = &[
    ("s3", Kind::S3),
    ("s3a", Kind::S3),
    ("gs", Kind::Google),
    ("gcs", Kind::Google),
    ("az", Kind::Azure),
    ("abfs", Kind::Azure),
    ("abfss", Kind::Azure),
    ("hdfs", Kind::Hdfs),
    ("viewfs", Kind::Hdfs),
];

/// What Azure's own host names end with.
const AZURE_HOSTS: [&str; 2] = [".blob.core.windows.net", ".dfs.core.windows.net"];

impl Location {
    pub(crate) fn parse(path: &str) -> Result<Location> {
        let Some((scheme, rest)) = path.split_once("://") else {
            return Err(Status::invalid_argument(format!("{path}; not a URL")));
        };
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((_, kind)) = SCHEMES.iter().find(|(name, _)| *name == scheme) else {
            return Err(Status::unimplemented(format!(
                "File system scheme '{scheme}' not implemented (file: '{}')",
                hide(path)
            )));
        };
        let (scheme, kind) = (scheme.to_owned(), *kind);
        let wrong = |why: &str| Status::invalid_argument(format!("{}; {why}", hide(path)));
        if path.contains('\0') {
            return Err(Status::invalid_argument("a URL contains a NUL byte"));
        }
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let is_abfs = scheme.starts_with("abfs");
        if user.is_some_and(|user| !is_abfs || user.contains(':')) {
            return Err(wrong(
                "a URL may not name a user or a password: give credentials by the environment or the provider's files",
            ));
        }
        let parts = key.split('/').filter(|part| !part.is_empty());
        let mut parts: Vec<&str> = parts.collect();
        if parts.iter().any(|part| matches!(*part, "." | "..")) {
            return Err(wrong("'.' and '..' mean nothing in a URL"));
        }
        let mut account = None;
        let store = match kind {
            Kind::Hdfs => format!("{scheme}://{host}"),
            Kind::Azure => {
                let of_account = AZURE_HOSTS.iter().find_map(|end| host.strip_suffix(end));
                account = of_account.map(str::to_owned);
                match (user, of_account) {
                    // abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY
                    (Some(container), _) if account.is_some() => container.to_owned(),
                    (Some(_), _) => return Err(wrong("the host is none of Azure's")),
                    // az://ACCOUNT.blob.core.windows.net/CONTAINER/KEY
                    (None, Some(_)) if parts.is_empty() => String::new(),
                    (None, Some(_)) => parts.remove(0).to_owned(),
                    (None, None) => host.to_owned(),
                }
            }
            Kind::S3 | Kind::Google => host.to_owned(),
        };
        if store.is_empty() {
            return Err(wrong(&format!(
                "names no {}: {scheme}://NAME/PATH",
                if kind == Kind::Azure {
                    "container"
                } else {
                    "bucket"
                }
            )));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if kind != Kind::Hdfs && !store.chars().all(is_name) {
            return Err(wrong("not the name of a bucket"));
        }
        Ok(Location {
            kind,
            store,
            account,
            key: parts.join("/"),
        })
    }
}

impl Location {
    /// What errors call the storage itself.
    pub(crate) fn name(&self) -> &str {
        self.store
            .split_once("://")
            .map_or(&self.store, |(_, host)| host)
    }
}

/// A URL as errors may show it.
fn hide(path: &str) -> String {
    let Some((scheme, rest)) = path.split_once("://") else {
        return path.to_owned();
    };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}/{key}"),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_what_their_users_mean() {
        for (path, kind, store, account, key) in [
            ("s3://b/k/x", Kind::S3, "b", None, "k/x"),
            ("s3a://b//k/", Kind::S3, "b", None, "k"),
            ("s3://b", Kind::S3, "b", None, ""),
            ("gs://b/*.tfrecord", Kind::Google, "b", None, "*.tfrecord"),
            ("az://c/k", Kind::Azure, "c", None, "k"),
            (
                "az://acc.blob.core.windows.net/c/k",
                Kind::Azure,
                "c",
                Some("acc"),
                "k",
            ),
            (
                "abfss://c@acc.dfs.core.windows.net/k",
                Kind::Azure,
                "c",
                Some("acc"),
                "k",
            ),
            (
                "hdfs://nn:8020/a/b",
                Kind::Hdfs,
                "hdfs://nn:8020",
                None,
                "a/b",
            ),
            ("hdfs:///a", Kind::Hdfs, "hdfs://", None, "a"),
            ("viewfs://c/a", Kind::Hdfs, "viewfs://c", None, "a"),
        ] {
            let expected = Location {
                kind,
                store: store.to_owned(),
                account: account.map(str::to_owned),
                key: key.to_owned(),
            };
            assert_eq!(Location::parse(path).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn what_is_malformed_is_told_and_passwords_are_not_repeated() {
        for (path, expected) in [
            ("s3:///k", "s3:///k; names no bucket: s3://NAME/PATH"),
            ("az://", "az://; names no container: az://NAME/PATH"),
            (
                "s3://b/../x",
                "s3://b/../x; '.' and '..' mean nothing in a URL",
            ),
            ("s3://b c/x", "s3://b c/x; not the name of a bucket"),
            (
                "ftp://b/x",
                "File system scheme 'ftp' not implemented (file: 'ftp://b/x')",
            ),
        ] {
            assert_eq!(Location::parse(path).unwrap_err().message, expected);
        }
        for path in [
            "s3://AKIA:SECRET@b/k",
            "hdfs://SECRET@nn:8020/k",
            "abfs://c:SECRET@acc.dfs.core.windows.net/k",
            "ftp://u:SECRET@h/k",
        ] {
            let text = Location::parse(path).unwrap_err().message;
            assert!(!text.contains("SECRET") && !text.contains("AKIA"), "{text}");
        }
    }
}
