//! Meta graphs: written for TensorFlow, and read from it.

use crate::training::{self, Kept, Trained, Training};
use anyhow::{Context as _, Result};
use downpour_build::{Graph, Operation};
use downpour_train::{MetaGraph, Saver};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A model to build and write.
#[derive(Deserialize)]
pub(crate) struct Export {
    training: Training,
    path: String,
}

/// A file to read, and where to write what was understood of it.
#[derive(Deserialize)]
pub(crate) struct Import {
    path: String,
    to: String,
}

/// What was understood of a file.
#[derive(Serialize)]
pub(crate) struct Found {
    collections: BTreeMap<String, Vec<String>>,
    variables: Vec<Kept>,
    trainable: Vec<String>,
    train_op: Vec<String>,
}

pub(crate) fn export(g: &Graph, asked: &Export) -> Result<Trained> {
    let trained = training::build(g, &asked.training)?;
    let saver = Saver::builder(g).keep(3).build()?;
    MetaGraph::of(g, Some(&saver))?.write(&asked.path)?;
    Ok(trained)
}

pub(crate) fn import(g: &Graph, asked: &Import) -> Result<Found> {
    let meta = MetaGraph::read(&asked.path)?;
    let imported = meta.import(g)?;
    let saver = imported.saver.as_ref().context("no saver")?;
    MetaGraph::of(g, Some(saver))?.write(&asked.to)?;
    let collections = meta.collections().into_iter();
    let trainable = g.trainable_variables();
    Ok(Found {
        collections: collections
            .map(|name| (name.to_owned(), meta.names(name)))
            .collect(),
        variables: training::kept(g),
        trainable: trainable.iter().map(|v| v.name().to_owned()).collect(),
        train_op: imported
            .operations("train_op")
            .iter()
            .map(Operation::name)
            .collect(),
    })
}
