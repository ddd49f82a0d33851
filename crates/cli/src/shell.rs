//! Help for people's shells: completions and manual pages, made of the same definition that reads the
//! arguments, so they cannot fall behind it.

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;

/// Flags of `downpour completions`.
#[derive(Args)]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Shown below its flags.
pub(crate) const COMPLETIONS: &str = "\
Examples (the directories may not be there yet):
  mkdir -p ~/.local/share/bash-completion/completions && downpour completions bash > ~/.local/share/bash-completion/completions/downpour
  mkdir -p ~/.zfunc && downpour completions zsh > ~/.zfunc/_downpour
  mkdir -p ~/.config/fish/completions && downpour completions fish > ~/.config/fish/completions/downpour.fish";

impl Completions {
    /// Prints the script for a shell.
    pub(crate) fn run(&self, mut command: clap::Command) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "downpour", &mut script);
        let mut out = std::io::stdout();
        out.write_all(&script)?;
        out.flush()?;
        Ok(())
    }
}

/// Flags of `downpour man`.
#[derive(Args)]
pub(crate) struct Man {
    /// Write a page for every command into this directory instead of printing the first
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Shown below its flags.
pub(crate) const MAN: &str = "\
Examples:
  downpour man | man -l -
  downpour man --out ~/.local/share/man/man1";

impl Man {
    /// Prints or writes manual pages.
    pub(crate) fn run(&self, command: clap::Command) -> Result<()> {
        match &self.out {
            Some(dir) => {
                let failed = || format!("cannot write manual pages to '{}'", dir.display());
                std::fs::create_dir_all(dir).with_context(failed)?;
                clap_mangen::generate_to(command, dir).with_context(failed)?;
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(command).render(&mut page)?;
                let mut out = std::io::stdout();
                out.write_all(&page)?;
                out.flush()?;
            }
        }
        Ok(())
    }
}
