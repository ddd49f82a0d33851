//! `--coordinator URL`. It is read after the flags: what is wrong with a flag's value is told with the value, and this
//! one may hold a password by mistake.

use anyhow::{Result, anyhow};
use downpour::train::{CoordinatedElection, CoordinatorUrl};
use std::convert::Infallible;
use std::str::FromStr;

/// A URL as it was given.
#[derive(Clone)]
pub(crate) struct Coordinator(String);

impl FromStr for Coordinator {
    type Err = Infallible;

    fn from_str(url: &str) -> Result<Coordinator, Infallible> {
        Ok(Coordinator(url.to_owned()))
    }
}

impl Coordinator {
    /// Which service it means.
    pub(crate) fn url(&self) -> Result<CoordinatorUrl> {
        Ok(self.0.parse::<CoordinatorUrl>()?)
    }

    /// As [`Self::url`], of a service that answers: what a job would fail by is told before it begins.
    pub(crate) fn answering(&self) -> Result<CoordinatorUrl> {
        let url = self.url()?;
        CoordinatedElection::check(&url).map_err(|e| anyhow!("{}", e.message))?;
        Ok(url)
    }
}
