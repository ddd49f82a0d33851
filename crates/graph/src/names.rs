//! The grammar of node, tensor and device names.

use std::fmt;

/// A device name of which any part may be missing: `/job:ps/replica:0/task:1/device:CPU:0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct DeviceName {
    /// Job.
    pub job: Option<String>,
    /// Replica; always 0 in this protocol.
    pub replica: Option<u32>,
    /// Task index.
    pub task: Option<u32>,
    /// Device type, upper case (`CPU`, `GPU`).
    pub kind: Option<String>,
    /// Index among the devices of its type.
    pub id: Option<u32>,
}

/// A string that is no device name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Malformed device specification '{0}'")]
pub struct DeviceNameError(pub String);

impl DeviceName {
    /// Parses a full or partial name; `""` and `"/"` constrain nothing.
    ///
    /// ```
    /// use downpour_graph::DeviceName;
    /// let d = DeviceName::parse("/task:3/job:ps/gpu:1")?;
    /// assert_eq!(d.to_string(), "/job:ps/task:3/device:GPU:1");
    /// # Ok::<(), downpour_graph::DeviceNameError>(())
    /// ```
    pub fn parse(text: &str) -> Result<DeviceName, DeviceNameError> {
        let bad = || DeviceNameError(text.chars().take(200).collect());
        let mut out = DeviceName::default();
        if text.is_empty() || text == "/" {
            return Ok(out);
        }
        let body = text.strip_prefix('/').ok_or_else(bad)?;
        for part in body.split('/') {
            let (key, value) = part.split_once(':').ok_or_else(bad)?;
            match key {
                "job" if value == "*" => out.job = None,
                "job" => {
                    let mut chars = value.chars();
                    if !chars.next().is_some_and(|c| c.is_ascii_alphabetic())
                        || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
                    {
                        return Err(bad());
                    }
                    out.job = Some(value.to_owned());
                }
                "replica" => out.replica = number(value).ok_or_else(bad)?,
                "task" => out.task = number(value).ok_or_else(bad)?,
                "device" => {
                    let (kind, id) = value.split_once(':').unwrap_or((value, "*"));
                    out.kind = match kind {
                        "*" => None,
                        k if is_device_type(k) => Some(k.to_uppercase()),
                        _ => return Err(bad()),
                    };
                    out.id = number(id).ok_or_else(bad)?;
                }
                "cpu" | "CPU" | "gpu" | "GPU" => {
                    out.kind = Some(key.to_uppercase());
                    out.id = number(value).ok_or_else(bad)?;
                }
                _ => return Err(bad()),
            }
        }
        Ok(out)
    }

    /// The same device with parts missing here taken from `defaults`.
    pub fn or(&self, defaults: &DeviceName) -> DeviceName {
        DeviceName {
            job: self.job.clone().or_else(|| defaults.job.clone()),
            replica: self.replica.or(defaults.replica),
            task: self.task.or(defaults.task),
            kind: self.kind.clone().or_else(|| defaults.kind.clone()),
            id: self.id.or(defaults.id),
        }
    }

    /// Whether every part given in both names agrees.
    pub fn intersects(&self, other: &DeviceName) -> bool {
        fn agree<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
            a.is_none() || b.is_none() || a == b
        }
        agree(&self.job, &other.job)
            && agree(&self.replica, &other.replica)
            && agree(&self.task, &other.task)
            && agree(&self.kind, &other.kind)
            && agree(&self.id, &other.id)
    }

    /// `/job:J/replica:R/task:T` of this device.
    pub fn task_name(&self) -> DeviceName {
        DeviceName {
            kind: None,
            id: None,
            ..self.clone()
        }
    }
}

fn is_device_type(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `*` is `Some(None)`, a number `Some(Some(n))`, anything else `None`.
fn number(text: &str) -> Option<Option<u32>> {
    if text == "*" {
        return Some(None);
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // TensorFlow keeps these in an int32.
    text.parse::<i32>().ok().map(|n| Some(n as u32))
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.kind, self.id) {
            (Some(kind), Some(id)) => write!(f, "/device:{kind}:{id}"),
            (Some(kind), None) => write!(f, "/device:{kind}:*"),
            (None, Some(id)) => write!(f, "/device:*:{id}"),
            (None, None) => Ok(()),
        }
    }
}

/// Whether `name` may name a node: `[A-Za-z0-9.>][A-Za-z0-9_>./\\-]*`, or the same after one `_`
/// in nodes that the runtime itself adds.
pub fn is_valid_node_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_' || b == b'>')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.\\/->".contains(&b))
}

/// Splits `node:3` (or `node`, which means output 0).
pub fn parse_endpoint(text: &str) -> Option<(&str, u32)> {
    match text.rsplit_once(':') {
        None => Some((text, 0)),
        Some((node, index)) if !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) => {
            index.parse::<i32>().ok().map(|i| (node, i as u32))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip_and_bad_ones_are_refused() {
        for good in [
            "/job:ps/replica:0/task:1/device:CPU:0",
            "/job:a_1",
            "/device:GPU:*",
            "",
        ] {
            assert_eq!(DeviceName::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(
            DeviceName::parse("/cpu:0").unwrap().to_string(),
            "/device:CPU:0"
        );
        for bad in [
            "job:ps",
            "/job:1a",
            "/job:../",
            "/task:-1",
            "/task:99999999999",
            "/device:GPU:-1",
            "/job:ps//task:0",
            "/foo:1",
            "//",
            "/job:",
            "/device:",
            "CPU:0",
        ] {
            assert!(DeviceName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn node_names_and_endpoints() {
        for good in ["a", "a/b_1-x.y", "_recv_x_0", ".a", "A>b"] {
            assert!(is_valid_node_name(good), "{good}");
        }
        for bad in ["", "^x", "x:0", "a b", "\n", "a\0", "é", "-a", "/a"] {
            assert!(!is_valid_node_name(bad), "{bad}");
        }
        assert_eq!(parse_endpoint("a:2"), Some(("a", 2)));
        assert_eq!(parse_endpoint("a"), Some(("a", 0)));
        assert_eq!(parse_endpoint("a:x"), None);
        assert_eq!(parse_endpoint("a:99999999999"), None);
    }
}
