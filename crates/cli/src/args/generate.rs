//! Texts generated from the definitions: completions of shells and manual pages.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Args;

/// Print the completions of a shell.
///
/// They complete subcommands, flags and paths, for the name that this command is called by (tload
/// or tensorload).
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
bash: tload completions bash > ~/.local/share/bash-completion/completions/tload
zsh:  tload completions zsh > DIR/_tload, with DIR in fpath
fish: tload completions fish > ~/.config/fish/completions/tload.fish")]
pub(crate) struct CompletionsArgs {
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Write the manual pages, tload.1 and one for each subcommand.
///
/// They are named as this command is called (tload or tensorload). man finds them in the directory
/// man1 of a directory in MANPATH, for example ~/.local/share/man/man1.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory to write to, created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// Writes completions for `program`, the name or path that the command was called by.
pub(crate) fn completions(
    args: &CompletionsArgs,
    program: &OsStr,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut text = Vec::new();
    let name = name_of(program);
    clap_complete::generate(args.shell, &mut Args::command(), name, &mut text);
    out.write_all(&text)
}

/// Writes the manual pages of `program` into `directory`.
pub(crate) fn manual(program: &OsStr, directory: &Path) -> io::Result<()> {
    let command = Args::command().name(name_of(program));
    // A page for each `help COMMAND` would say what that of the command does.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    clap_mangen::generate_to(with_usage(command), directory)
}

/// Gives each command the synopsis of its help. The one that is made for pages lists every flag,
/// and leaves out their values.
fn with_usage(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    command.override_usage(usage).mut_subcommands(with_usage)
}

fn name_of(program: &OsStr) -> String {
    let name = Path::new(program).file_stem().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

/// Returns the program's name as the user called it.
pub(crate) fn program(arguments: &[OsString]) -> &OsStr {
    arguments
        .first()
        .map_or(OsStr::new("tload"), OsString::as_os_str)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::ValueEnum;

    use super::*;

    /// Returns subcommands and their long flags; `""` stands for the command itself.
    fn flags() -> Vec<(String, Vec<String>)> {
        let flags = |command: &Command| -> Vec<String> {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            shown
                .filter_map(|arg| arg.get_long().map(str::to_owned))
                .collect()
        };
        let mut command = Args::command();
        command.build();
        let subcommands = command
            .get_subcommands()
            .filter(|it| it.get_name() != "help");
        let mut all = vec![(String::new(), flags(&command))];
        all.extend(subcommands.map(|it| (it.get_name().to_owned(), flags(it))));
        assert!(all.len() > 9 && all.iter().all(|(_, flags)| flags.len() > 3));
        all
    }

    #[test]
    fn completions_name_every_subcommand_and_flag() {
        for shell in Shell::value_variants() {
            let args = CompletionsArgs { shell: *shell };
            let mut text = Vec::new();
            completions(&args, OsStr::new("/bin/tensorload"), &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("tensorload"), "{shell}");
            for (subcommand, flags) in flags() {
                assert!(text.contains(&subcommand), "{shell}: {subcommand}");
                for flag in flags {
                    // fish writes flags as `-l flag`.
                    assert!(text.contains(&flag), "{shell}: {subcommand} --{flag}");
                }
            }
        }
    }

    #[test]
    fn completions_offer_the_values_of_options() {
        let args = CompletionsArgs { shell: Shell::Bash };
        let mut text = Vec::new();
        completions(&args, OsStr::new("tload"), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let load = &text[text.find("        tload__subcmd__load)").expect("load")..];
        let values = |flag: &str| {
            let case = &load[load
                .find(&format!("                {flag})"))
                .expect("a case")..];
            case.lines().nth(1).expect("an action").trim().to_owned()
        };
        for (flag, wanted) in [
            ("--engine", "auto uring pread tokio-uring"),
            ("--cache", "auto direct buffered drop map"),
            ("--order", "ready file"),
            ("--hedge", "true false"),
        ] {
            assert!(values(flag).contains(wanted), "{flag}: {}", values(flag));
        }
        assert!(values("--share").contains("node"), "{}", values("--share"));
        assert!(values("--depth").contains("compgen -f"));
    }

    #[test]
    fn synopsis_of_a_manual_page_is_that_of_the_help() {
        let folder = tempfile::tempdir().unwrap();
        manual(OsStr::new("tload"), folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join("tload-load.1")).unwrap();
        let synopsis = page
            .lines()
            .skip_while(|line| *line != ".SH SYNOPSIS")
            .nth(1);
        let synopsis = synopsis.expect("has one");
        assert!(
            synopsis.contains("tload load") && synopsis.contains("[OPTIONS]"),
            "{synopsis}"
        );
        assert!(!synopsis.contains("engine"), "{synopsis}");
    }

    #[test]
    fn each_manual_page_names_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        manual(OsStr::new("/bin/tensorload"), folder.path()).unwrap();
        for (subcommand, flags) in flags() {
            let name = if subcommand.is_empty() {
                "tensorload.1".to_owned()
            } else {
                format!("tensorload-{subcommand}.1")
            };
            let page = fs::read_to_string(folder.path().join(&name))
                .unwrap()
                .replace("\\-", "-");
            for flag in flags {
                assert!(page.contains(&format!("--{flag}")), "{name}: --{flag}");
            }
        }
    }
}
