//! Clusters, servers and devices as messages describe them.

use super::SessionConfig;
use crate::proto;
use std::collections::BTreeMap;

/// The tasks of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDef {
    /// Jobs.
    pub jobs: Vec<JobDef>,
}

/// The tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobDef {
    /// Name.
    pub name: String,
    /// Task index → `host:port`; indices need not be contiguous.
    pub tasks: BTreeMap<i32, String>,
}

/// A task of a cluster, as its master describes it to the task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerDef {
    /// The cluster; without a job, the task keeps its own view.
    pub cluster: ClusterDef,
    /// Job of the task.
    pub job_name: String,
    /// Index of the task.
    pub task_index: i32,
    /// Settings of sessions that say nothing.
    pub default_session_config: SessionConfig,
    /// `grpc`.
    pub protocol: String,
    /// Port to listen on; 0 is the one in the cluster.
    pub port: i32,
    /// Replica.
    pub replica: i32,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Full name.
    pub name: String,
    /// `CPU`, `GPU`, ….
    pub device_type: String,
    /// Bytes.
    pub memory_limit: i64,
    /// Where it sits in its machine.
    pub locality: DeviceLocality,
    /// Drawn anew when its process starts.
    pub incarnation: u64,
    /// For people.
    pub physical_device_desc: String,
    /// -1 on CPUs.
    pub xla_global_id: i64,
}

/// Where a device sits in its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLocality {
    /// Bus.
    pub bus_id: i32,
    /// NUMA node.
    pub numa_node: i32,
    /// Direct links to other devices.
    pub links: Vec<DeviceLink>,
}

/// A direct link to another device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLink {
    /// The other device.
    pub device_id: i32,
    /// Kind of link.
    pub kind: String,
    /// Relative strength.
    pub strength: i32,
}

impl From<proto::ClusterDef> for ClusterDef {
    fn from(proto: proto::ClusterDef) -> ClusterDef {
        let job = |j: proto::JobDef| JobDef {
            name: j.name,
            tasks: j.tasks,
        };
        ClusterDef {
            jobs: proto.job.into_iter().map(job).collect(),
        }
    }
}

impl From<ClusterDef> for proto::ClusterDef {
    fn from(cluster: ClusterDef) -> proto::ClusterDef {
        let job = |j: JobDef| proto::JobDef {
            name: j.name,
            tasks: j.tasks,
        };
        proto::ClusterDef {
            job: cluster.jobs.into_iter().map(job).collect(),
        }
    }
}

impl ServerDef {
    pub(super) fn decode(proto: proto::ServerDef) -> ServerDef {
        ServerDef {
            cluster: proto.cluster.unwrap_or_default().into(),
            job_name: proto.job_name,
            task_index: proto.task_index,
            default_session_config: SessionConfig::decode(
                proto.default_session_config.unwrap_or_default(),
            ),
            protocol: proto.protocol,
            port: proto.port,
            replica: proto.replica,
        }
    }

    pub(super) fn encode(self) -> proto::ServerDef {
        proto::ServerDef {
            cluster: Some(self.cluster.into()),
            job_name: self.job_name,
            task_index: self.task_index,
            default_session_config: Some(self.default_session_config.encode()),
            protocol: self.protocol,
            port: self.port,
            replica: self.replica,
            ..Default::default()
        }
    }
}

impl From<proto::DeviceAttributes> for DeviceAttributes {
    fn from(proto: proto::DeviceAttributes) -> DeviceAttributes {
        DeviceAttributes {
            name: proto.name,
            device_type: proto.device_type,
            memory_limit: proto.memory_limit,
            locality: proto.locality.unwrap_or_default().into(),
            incarnation: proto.incarnation,
            physical_device_desc: proto.physical_device_desc,
            xla_global_id: proto.xla_global_id,
        }
    }
}

impl From<DeviceAttributes> for proto::DeviceAttributes {
    fn from(device: DeviceAttributes) -> proto::DeviceAttributes {
        proto::DeviceAttributes {
            name: device.name,
            device_type: device.device_type,
            memory_limit: device.memory_limit,
            locality: Some(device.locality.into()),
            incarnation: device.incarnation,
            physical_device_desc: device.physical_device_desc,
            xla_global_id: device.xla_global_id,
        }
    }
}

impl From<proto::DeviceLocality> for DeviceLocality {
    fn from(proto: proto::DeviceLocality) -> DeviceLocality {
        let link = |l: proto::InterconnectLink| DeviceLink {
            device_id: l.device_id,
            kind: l.r#type,
            strength: l.strength,
        };
        DeviceLocality {
            bus_id: proto.bus_id,
            numa_node: proto.numa_node,
            links: proto
                .links
                .unwrap_or_default()
                .link
                .into_iter()
                .map(link)
                .collect(),
        }
    }
}

impl From<DeviceLocality> for proto::DeviceLocality {
    fn from(locality: DeviceLocality) -> proto::DeviceLocality {
        let link = |l: DeviceLink| proto::InterconnectLink {
            device_id: l.device_id,
            r#type: l.kind,
            strength: l.strength,
        };
        proto::DeviceLocality {
            bus_id: locality.bus_id,
            numa_node: locality.numa_node,
            links: (!locality.links.is_empty()).then(|| proto::LocalLinks {
                link: locality.links.into_iter().map(link).collect(),
            }),
        }
    }
}

pub(super) fn decode_devices(protos: Vec<proto::DeviceAttributes>) -> Vec<DeviceAttributes> {
    protos.into_iter().map(Into::into).collect()
}

pub(super) fn encode_devices(devices: Vec<DeviceAttributes>) -> Vec<proto::DeviceAttributes> {
    devices.into_iter().map(Into::into).collect()
}
