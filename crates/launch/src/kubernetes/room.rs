//! Whether any node could ever run a task, so that a job which asks for too much is refused at once and does not wait for
//! ever. Pure. Whether a node has room now is the scheduler's to say.

use serde_json::Value;
use std::collections::BTreeMap;

/// What pods of a description ask for, by the name of the resource.
fn asked(pod: &Value) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, f64> = BTreeMap::new();
    let spec = &pod["spec"];
    let list = |part: &str| spec[part].as_array().cloned().unwrap_or_default();
    let sidecars = list("initContainers")
        .into_iter()
        .filter(|c| c["restartPolicy"] == "Always");
    for container in list("containers").into_iter().chain(sidecars) {
        let resources = &container["resources"];
        let mut own = BTreeMap::new();
        // What is limited and not requested is requested to the limit.
        for part in ["limits", "requests"] {
            for (name, amount) in resources[part].as_object().into_iter().flatten() {
                own.extend(quantity(amount).map(|amount| (name.clone(), amount)));
            }
        }
        for (name, amount) in own {
            *all.entry(name).or_default() += amount;
        }
    }
    all
}

/// Says what no node has, if no node has it. `nodes` are those of the cluster as it lists them.
pub(crate) fn check(job: &str, pod: &Value, nodes: &Value) -> Result<(), String> {
    let nodes: Vec<&Value> = nodes["items"].as_array().into_iter().flatten().collect();
    if nodes.is_empty() {
        return Ok(());
    }
    let wanted = pod["spec"]["nodeSelector"].as_object();
    let has_labels = |node: &&&Value| {
        let mut wanted = wanted.into_iter().flatten();
        wanted.all(|(label, value)| node["metadata"]["labels"][label] == *value)
    };
    let fitting: Vec<&&Value> = nodes.iter().filter(has_labels).collect();
    if fitting.is_empty() {
        let labels = wanted
            .into_iter()
            .flatten()
            .map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()));
        let labels: Vec<String> = labels.collect();
        return Err(format!(
            "no node for {job} has the labels {}",
            labels.join(", ")
        ));
    }
    let asked = asked(pod);
    let has =
        |node: &Value, name: &str| quantity(&node["status"]["allocatable"][name]).unwrap_or(0.0);
    if fitting.iter().any(|node| {
        asked
            .iter()
            .all(|(name, amount)| has(node, name) >= *amount)
    }) {
        return Ok(());
    }
    let mut short = asked.iter().map(|(name, amount)| {
        let most = fitting
            .iter()
            .map(|node| has(node, name))
            .fold(0.0, f64::max);
        (name, *amount, most)
    });
    let (shown, are) = (|name: &str, amount| shown(name, amount), fitting.len());
    Err(match short.find(|(_, amount, most)| amount > most) {
        Some((name, amount, most)) => format!(
            "no node has room for {job}: it asks for {name} {}, and the largest of {are} has {}",
            shown(name, amount),
            shown(name, most)
        ),
        None => format!("no node has room for {job}: none of {are} has all that it asks for"),
    })
}

fn shown(name: &str, amount: f64) -> String {
    match name {
        "memory" | "ephemeral-storage" => format!("{:.1}Gi", amount / f64::from(1 << 30)),
        _ => format!("{amount}"),
    }
}

/// An amount as Kubernetes writes it: `500m`, `4Gi`, `1e3`.
fn quantity(value: &Value) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let text = match value {
        Value::String(text) => text.as_str(),
        number => return number.as_f64(),
    };
    let cut = SUFFIXES
        .iter()
        .find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)));
    let (number, scale) = cut.unwrap_or((text, 1.0));
    let number: f64 = number.parse().ok()?;
    number.is_finite().then_some(number * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(cpu: &str, memory: &str, label: &str) -> Value {
        json!({
            "metadata": {"labels": {"kind": label}},
            "status": {"allocatable": {"cpu": cpu, "memory": memory}},
        })
    }

    fn pod(cpu: &str, memory: &str, label: &str) -> Value {
        let limits = json!({"cpu": cpu, "memory": memory});
        json!({"spec": {"nodeSelector": {"kind": label}, "containers": [{"resources": {"limits": limits}}]}})
    }

    #[test]
    fn what_no_node_has_is_named() {
        let nodes = json!({"items": [node("2", "4Gi", "a"), node("1500m", "16Gi", "b")]});
        let check = |pod: Value| check("worker", &pod, &nodes);
        assert_eq!(check(pod("2", "1Gi", "a")), Ok(()));
        let error = check(pod("64", "1Gi", "a")).unwrap_err();
        assert_eq!(
            error,
            "no node has room for worker: it asks for cpu 64, and the largest of 1 has 2"
        );
        let error = check(pod("1", "17179869185", "b")).unwrap_err();
        assert!(error.contains("memory 16.0Gi"), "{error}");
        let error = check(pod("1", "1", "c")).unwrap_err();
        assert_eq!(error, "no node for worker has the labels kind=c");
        // A card that no node knows of is one that none has.
        let gpu =
            json!({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
        assert!(
            check(gpu)
                .unwrap_err()
                .contains("nvidia.com/gpu 1, and the largest of 2 has 0")
        );
    }

    #[test]
    fn without_a_word_on_nodes_nothing_is_refused() {
        assert_eq!(check("ps", &pod("64", "1", "a"), &json!({})), Ok(()));
    }

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, want) in [
            ("500m", 0.5),
            ("4Ki", 4096.0),
            ("1e3", 1000.0),
            ("2", 2.0),
            ("3M", 3e6),
        ] {
            assert_eq!(quantity(&json!(text)), Some(want), "{text}");
        }
        assert_eq!(quantity(&json!(3)), Some(3.0));
        assert_eq!(quantity(&json!("x")), None);
    }
}
