//! The ResourceManager's REST: submit an application, look how it is, end it.

use crate::http::{Answer, Body, HttpError, ask, escaped};
use crate::node::{Launch, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// An application that is to be.
#[derive(Clone, Debug)]
pub struct NewApp {
    /// The number that [`Rm::new_application`] gave.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Of which kind it is.
    pub kind: String,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Its queue, if not the usual one.
    pub queue: Option<String>,
    /// Nodes with this label.
    pub label: Option<String>,
    /// How often its ApplicationMaster may be started.
    pub attempts: u32,
    /// What its ApplicationMaster has.
    pub resource: Resource,
    /// Its ApplicationMaster.
    pub launch: Launch,
}

impl NewApp {
    fn to_json(&self) -> Value {
        let entries = |pairs: &BTreeMap<String, String>| {
            let entries = pairs
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value}));
            json!({"entry": entries.collect::<Vec<_>>()})
        };
        let files = self.launch.files.iter().map(|(name, (file, is_archive))| {
            json!({"key": name, "value": {
                "resource": file.url,
                "type": if *is_archive { "ARCHIVE" } else { "FILE" },
                "visibility": "APPLICATION",
                "size": file.length,
                "timestamp": file.modified,
            }})
        });
        let mut made = json!({
            "application-id": self.id,
            "application-name": self.name,
            "application-type": self.kind,
            "application-tags": {"tag": self.tags},
            "max-app-attempts": self.attempts,
            "keep-containers-across-application-attempts": false,
            "resource": {"memory": self.resource.memory_mb, "vCores": self.resource.cores},
            "am-container-spec": {
                "commands": {"command": self.launch.command},
                "environment": entries(&self.launch.env),
                "local-resources": {"entry": files.collect::<Vec<_>>()},
            },
        });
        if let Some(queue) = &self.queue {
            made["queue"] = json!(queue);
        }
        if let Some(label) = &self.label {
            made["app-node-label-expression"] = json!(label);
        }
        made
    }
}

/// What a container may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Cores.
    pub cores: u64,
}

/// How an application is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppReport {
    /// Its number.
    pub id: String,
    /// As in `RUNNING`.
    pub state: String,
    /// As in `SUCCEEDED`.
    pub final_status: String,
    /// What is said of it.
    pub diagnostics: String,
    /// Where its ApplicationMaster listens, while there is one.
    pub master: Option<String>,
    /// Its page.
    pub tracking_url: String,
}

impl AppReport {
    fn read(app: &Value) -> AppReport {
        let text = |key: &str| app[key].as_str().unwrap_or_default().to_owned();
        let master = text("amRPCAddress");
        let is_address = |a: &str| {
            a.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0)
            })
        };
        AppReport {
            id: text("id"),
            state: text("state"),
            final_status: text("finalStatus"),
            diagnostics: text("diagnostics"),
            master: is_address(&master).then_some(master),
            tracking_url: text("trackingUrl"),
        }
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        ["FINISHED", "FAILED", "KILLED"].contains(&self.state.as_str())
    }
}

/// A cluster's ResourceManagers, of which one is active.
#[derive(Clone, Debug)]
pub struct Rm {
    addresses: Vec<String>,
    user: String,
}

impl Rm {
    /// Behind these web addresses, `host:port`; who asks.
    pub fn new(addresses: Vec<String>, user: &str) -> Rm {
        Rm {
            addresses,
            user: user.to_owned(),
        }
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: &Body<'_>,
    ) -> Result<Answer, HttpError> {
        let mut last = HttpError {
            url: path.to_owned(),
            reason: "no ResourceManager's web address is known".to_owned(),
        };
        let user = escaped(&self.user, "");
        for address in &self.addresses {
            let url = format!("http://{address}/ws/v1/cluster/{path}?user.name={user}{query}");
            match ask(method, &url, body) {
                // One on standby sends elsewhere.
                Ok(answer) if matches!(answer.status, 302 | 307 | 503) => {
                    last = HttpError {
                        url: format!("http://{address}"),
                        reason: "it is on standby".to_owned(),
                    };
                }
                Ok(answer) => return Ok(answer),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn json(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: &Body<'_>,
    ) -> Result<Value, HttpError> {
        let answer = self.ask(method, path, query, body)?;
        let wrong = |reason: String| HttpError {
            url: format!("the ResourceManager, {path}"),
            reason,
        };
        match answer.is_success() {
            true if answer.body.is_empty() => Ok(Value::Null),
            true => serde_json::from_slice(&answer.body)
                .map_err(|e| wrong(format!("its answer is no JSON: {e}"))),
            false => Err(wrong(answer.reason())),
        }
    }

    /// A number for a new application, and what its containers may have.
    pub fn new_application(&self) -> Result<(String, Limits), HttpError> {
        let said = self.json("POST", "apps/new-application", "", &Body::Json(""))?;
        let most = &said["maximum-resource-capability"];
        let limits = Limits {
            memory_mb: most["memory"].as_u64().unwrap_or(u64::MAX),
            cores: most["vCores"].as_u64().unwrap_or(u64::MAX),
        };
        match said["application-id"].as_str() {
            Some(id) if id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                Ok((id.to_owned(), limits))
            }
            _ => Err(HttpError {
                url: "the ResourceManager".to_owned(),
                reason: "it gave no number for an application".to_owned(),
            }),
        }
    }

    /// Hands an application in.
    pub fn submit(&self, app: &NewApp) -> Result<(), HttpError> {
        let text = app.to_json().to_string();
        self.json("POST", "apps", "", &Body::Json(&text)).map(drop)
    }

    /// How an application is.
    pub fn report(&self, id: &str) -> Result<AppReport, HttpError> {
        let said = self.json("GET", &format!("apps/{}", escaped(id, "")), "", &Body::None)?;
        Ok(AppReport::read(&said["app"]))
    }

    /// This user's applications with a tag that are not over.
    pub fn find(&self, tag: &str) -> Result<Vec<AppReport>, HttpError> {
        let query = format!(
            "&states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING&user={}&applicationTags={}",
            escaped(&self.user, ""),
            escaped(tag, "")
        );
        let said = self.json("GET", "apps", &query, &Body::None)?;
        let apps = said["apps"]["app"].as_array();
        Ok(apps.into_iter().flatten().map(AppReport::read).collect())
    }

    /// Ends an application at once.
    pub fn kill(&self, id: &str) -> Result<(), HttpError> {
        let path = format!("apps/{}/state", escaped(id, ""));
        let body = json!({"state": "KILLED"}).to_string();
        self.json("PUT", &path, "", &Body::Json(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhdfs::FileStatus;

    #[test]
    fn an_application_is_described_as_the_rest_api_wants_it() {
        let app = NewApp {
            id: "application_1_2".to_owned(),
            name: "mnist".to_owned(),
            kind: "DOWNPOUR".to_owned(),
            tags: vec!["t".to_owned()],
            queue: Some("gpu".to_owned()),
            label: None,
            attempts: 2,
            resource: Resource {
                memory_mb: 512,
                cores: 1,
                others: Vec::new(),
            },
            launch: Launch {
                command: "./x".to_owned(),
                env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
                files: BTreeMap::from([(
                    "x".to_owned(),
                    (
                        FileStatus {
                            url: "hdfs://n/x".to_owned(),
                            length: 1,
                            modified: 2,
                        },
                        true,
                    ),
                )]),
                ..Launch::default()
            },
        };
        let made = app.to_json();
        assert_eq!(made["queue"], "gpu");
        assert_eq!(made["app-node-label-expression"], Value::Null);
        let spec = &made["am-container-spec"];
        assert_eq!(spec["environment"]["entry"][0]["key"], "A");
        assert_eq!(
            spec["local-resources"]["entry"][0]["value"]["type"],
            "ARCHIVE"
        );
    }

    #[test]
    fn a_report_is_read() {
        let app = json!({"id": "a", "state": "RUNNING", "finalStatus": "UNDEFINED", "amRPCAddress": "n1:4000", "trackingUrl": "http://x"});
        let report = AppReport::read(&app);
        assert_eq!(
            (report.master.as_deref(), report.has_ended()),
            (Some("n1:4000"), false)
        );
        for address in ["n1:-1", ":0", "", "n1:0", "n1"] {
            assert_eq!(
                AppReport::read(&json!({"amRPCAddress": address})).master,
                None
            );
        }
    }
}
