//! Registers in etcd: a key each, changed by transactions on its revision.
//!
//! Speaks etcd's `KV` service with the gRPC that the project has anyway. The crate `etcd-client`
//! would need `protoc` on every machine that builds this.

use crate::record::Version;
use crate::register::{Error, Register, Result};
use prost::Message;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Registers below a path in an etcd cluster.
pub struct Etcd {
    /// Drives the connection while a call waits, and only then.
    runtime: Runtime,
    channel: Channel,
    hosts: String,
    path: String,
    within: Duration,
}

impl Etcd {
    /// Of the cluster at `HOST:PORT[,HOST:PORT]`. Every call waits for an answer this long.
    pub fn open(hosts: &str, path: &str, within: Duration) -> Result<Etcd> {
        let refused = |reason: String| Error::Refused {
            service: format!("etcd at {hosts}"),
            reason,
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| refused(e.to_string()))?;
        let mut endpoints = Vec::new();
        for host in hosts.split(',') {
            let endpoint = Endpoint::from_shared(format!("http://{host}"));
            let endpoint = endpoint.map_err(|e| refused(e.to_string()))?;
            endpoints.push(endpoint.connect_timeout(within));
        }
        let channel = {
            // The channel's own tasks belong to this runtime.
            let _entered = runtime.enter();
            Channel::balance_list(endpoints.into_iter())
        };
        Ok(Etcd {
            runtime,
            channel,
            hosts: hosts.to_owned(),
            path: path.trim_matches('/').to_owned(),
            within,
        })
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.path).into_bytes()
    }

    /// Makes one call, and waits no longer than it may take.
    fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let call = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready()
                .await
                .map_err(|e| Status::unavailable(e.to_string()))?;
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(method);
            grpc.unary(Request::new(question), path, codec).await
        };
        let timed = async { tokio::time::timeout(self.within, call).await };
        match self.runtime.block_on(timed) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(why)) if why.code() != Code::Unavailable => Err(Error::Refused {
                service: format!("etcd at {}", self.hosts),
                reason: why.message().to_owned(),
            }),
            _ => Err(Error::Silent {
                service: format!("etcd at {}", self.hosts),
                within: self.within,
            }),
        }
    }
}

impl Register for Etcd {
    fn read(&self, name: &str) -> Result<(Version, Vec<u8>)> {
        let range = RangeRequest {
            key: self.key(name),
        };
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", range)?;
        let found = answer.kvs.into_iter().next();
        Ok(found.map_or((Version::NONE, Vec::new()), |found| {
            (revision(found.mod_revision), found.value)
        }))
    }

    fn swap(&self, name: &str, expected: Version, value: &[u8]) -> Result<Option<Version>> {
        let key = self.key(name);
        let same = Compare {
            result: COMPARE_EQUAL,
            target: COMPARE_MOD_REVISION,
            key: key.clone(),
            // A key that does not exist has revision 0.
            mod_revision: Some(i64::try_from(expected.0).unwrap_or(i64::MAX)),
        };
        let put = PutRequest {
            key,
            value: value.to_vec(),
        };
        let txn = TxnRequest {
            compare: vec![same],
            success: vec![RequestOp { put: Some(put) }],
        };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", txn)?;
        let now = answer.header.map_or(0, |header| header.revision);
        Ok(answer.succeeded.then(|| revision(now)))
    }
}

fn revision(number: i64) -> Version {
    Version(u64::try_from(number).unwrap_or(0))
}

const COMPARE_EQUAL: i32 = 0;
const COMPARE_MOD_REVISION: i32 = 2;

// The fields that are used of etcd's `rpc.proto` and `kv.proto`, by their numbers.

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// Of a `oneof`, so that 0 is sent too.
    #[prost(int64, optional, tag = "6")]
    mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    succeeded: bool,
}
