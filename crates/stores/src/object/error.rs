//! What a client's errors mean: which may pass, and one line about each that repeats nothing secret. The client's own
//! texts hold URLs and answers of servers, which may name keys, signatures and tokens: only a status, the code in an
//! answer and what the operating system said are taken out of them.

use crate::call::Failure;
use crate::profile::Environment;
use downpour_graph::{Code, Status};
use object_store::client::HttpError;
use std::error::Error as _;
use std::sync::Arc;

/// Longest text of a client that is repeated.
const LONGEST: usize = 300;
/// Shorter values are words that any text may have.
const SHORTEST_SECRET: usize = 6;

/// What is known about a bucket that errors may need.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    bucket: Arc<str>,
    secrets: Secrets,
}

#[derive(Clone)]
struct Secrets(Arc<[String]>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Words {
    pub(crate) fn new(bucket: &str, environment: &Environment) -> Words {
        let is_secret = |name: &str| {
            ["KEY", "SECRET", "TOKEN", "PASSWORD", "SAS"]
                .iter()
                .any(|word| name.contains(word))
        };
        let secrets = environment.iter().filter(|(name, value)| {
            is_secret(&name.to_ascii_uppercase()) && value.len() >= SHORTEST_SECRET
        });
        Words {
            bucket: bucket.into(),
            secrets: Secrets(secrets.map(|(_, value)| value.clone()).collect()),
        }
    }

    /// What a failed request about a path is to its caller.
    pub(crate) fn failure(&self, path: &str, error: &object_store::Error) -> Failure {
        let (code, text, is_transient) = self.judge(error);
        let text = match path {
            "" => text,
            path => format!("{path}; {text}"),
        };
        Failure {
            status: Status::new(code, text),
            is_transient,
        }
    }

    fn judge(&self, error: &object_store::Error) -> (Code, String, bool) {
        use object_store::Error;
        let full = error.to_string();
        let answer = Answer::of(&full);
        let bucket = &self.bucket;
        if answer.code == Some("NoSuchBucket") || answer.code == Some("ContainerNotFound") {
            return (
                Code::FailedPrecondition,
                format!("there is no bucket '{bucket}'"),
                false,
            );
        }
        match error {
            Error::NotFound { .. } => (
                Code::NotFound,
                "No such file or directory".to_owned(),
                false,
            ),
            Error::AlreadyExists { .. } | Error::Precondition { .. } => {
                (Code::AlreadyExists, "File exists".to_owned(), false)
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                let why = answer.code.unwrap_or("no reason given");
                let text = match why {
                    "InvalidAccessKeyId"
                    | "SignatureDoesNotMatch"
                    | "InvalidToken"
                    | "ExpiredToken"
                    | "AuthenticationFailed"
                    | "InvalidClientTokenId" => {
                        format!("the storage does not accept the credentials ({why})")
                    }
                    _ => format!("Permission denied ({why})"),
                };
                (Code::PermissionDenied, text, false)
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => {
                (Code::Unimplemented, self.plain(&full), false)
            }
            Error::InvalidPath { .. } => (
                Code::InvalidArgument,
                "not a key that objects can have".to_owned(),
                false,
            ),
            _ => self.judge_generic(error, &full, &answer),
        }
    }

    fn judge_generic(
        &self,
        error: &object_store::Error,
        full: &str,
        answer: &Answer<'_>,
    ) -> (Code, String, bool) {
        if full.contains("169.254.169.254") || full.contains("metadata.google.internal") {
            let text = "no credentials: none in the environment or the provider's files, and this machine has no service that gives them";
            return (Code::Unauthenticated, text.to_owned(), true);
        }
        if let Some(status) = answer.status {
            let text = match answer.code {
                Some(code) => format!("the storage answered {status} ({code})"),
                None => format!("the storage answered {status}"),
            };
            let is_transient = status >= 500 && status != 501 || status == 429 || status == 408;
            let code = match status {
                501 => Code::Unimplemented,
                400 => Code::InvalidArgument,
                _ if is_transient => Code::Unavailable,
                _ => Code::Unknown,
            };
            return (code, text, is_transient);
        }
        let mut is_http = false;
        let mut source = error.source();
        let mut deepest = None;
        while let Some(inner) = source {
            is_http |= inner.is::<HttpError>();
            deepest = Some(inner);
            source = inner.source();
        }
        match deepest {
            Some(inner) if is_http => (Code::Unavailable, self.plain(&inner.to_string()), true),
            _ => (Code::InvalidArgument, self.plain(full), false),
        }
    }

    /// A text on one line, without anything secret.
    fn plain(&self, text: &str) -> String {
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for secret in self.secrets.0.iter() {
            text = text.replace(secret.as_str(), "…");
        }
        match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }
}

/// What a server answered, out of the client's text about it: its types are the client's own.
struct Answer<'a> {
    status: Option<u16>,
    code: Option<&'a str>,
}

impl<'a> Answer<'a> {
    fn of(text: &'a str) -> Answer<'a> {
        let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest);
        let status = after("status code: ").and_then(|rest| rest.get(..3)?.parse().ok());
        let code = after("<Code>").and_then(|rest| rest.split('<').next());
        let is_word = |code: &&str| {
            code.len() < 64 && code.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
        };
        Answer {
            status,
            code: code.filter(is_word),
        }
    }
}
