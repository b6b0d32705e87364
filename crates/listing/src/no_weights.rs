//! Error for a directory without safetensors files: it says which kind of directory it is, as far
//! as the names in it tell.

use tload_base::error::{Error, ErrorKind, counted};
use tload_base::options::Location;
use tload_format::SUFFIX;

/// Most subdirectories that a hint names.
const SHOWN: usize = 8;

/// Program whose files are read, but not found in a directory.
const TENSORIZER: &str = "Tensorizer";

/// Ends of the names of weights in other formats, with the program that wrote them.
const OTHER_WEIGHTS: [(&str, &str); 10] = [
    (".bin", "PyTorch"),
    (".pt", "PyTorch"),
    (".pth", "PyTorch"),
    (".ckpt", "PyTorch"),
    (".gguf", "llama.cpp"),
    (".onnx", "ONNX"),
    (".h5", "TensorFlow"),
    (".msgpack", "Flax"),
    (".npz", "numpy"),
    (".tensors", TENSORIZER),
];

/// Returns the error for the directory `location` with the files `names` and the subdirectories
/// `below`, of which those in `holding` are known to have safetensors files. `notes` say what the
/// listing left out, which may be the weights.
#[must_use]
pub fn no_weights(
    location: &Location,
    names: &[String],
    below: &[String],
    holding: &[String],
    notes: &[String],
) -> Error {
    let files = counted(names.len() as u64, "file");
    let among = match below.len() as u64 {
        0 => files,
        1 => format!("{files} and 1 subdirectory"),
        more => format!("{files} and {more} subdirectories"),
    };
    let message = format!("contains no *{SUFFIX} among {among}");
    let notes = notes.iter().cloned();
    let hints: Vec<_> = notes.chain([hint(names, below, holding)]).collect();
    Error::new(ErrorKind::NotFound, message)
        .with_location(location)
        .with_hint(hints.join("; "))
}

fn hint(names: &[String], below: &[String], holding: &[String]) -> String {
    // Every pipeline of diffusers has this file.
    let is_pipeline = names.iter().any(|name| name == "model_index.json");
    let other = names.iter().find_map(|name| {
        let (_, program) = OTHER_WEIGHTS.iter().find(|(end, _)| name.ends_with(end))?;
        Some((name, program))
    });
    let known = if holding.is_empty() { below } else { holding };
    match other {
        _ if is_pipeline && !known.is_empty() => {
            let known = list(known);
            format!("it is a diffusers pipeline with {known}: load one of these subdirectories")
        }
        Some((name, &TENSORIZER)) => format!("{name:?} is a file of Tensorizer: pass its path"),
        Some((name, program)) if holding.is_empty() => {
            format!("{name:?} is a file of {program}: convert it to safetensors first")
        }
        _ if !known.is_empty() => {
            format!("its subdirectories are {}: load one of them", list(known))
        }
        _ => "pass the directory that contains the model's files, or a file".to_owned(),
    }
}

/// Names directories, the first of many: `unet/, vae/`.
fn list(folders: &[String]) -> String {
    let shown = folders[..folders.len().min(SHOWN)].join("/, ");
    match folders.len().saturating_sub(SHOWN) {
        0 => format!("{shown}/"),
        more => format!("{shown}/ and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_says_what_the_directory_is() {
        let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (names, below, holding, wanted) in [
            (
                &["model_index.json"][..],
                &["scheduler", "unet", "vae"][..],
                &["unet", "vae"][..],
                "it is a diffusers pipeline with unet/, vae/: load one of these subdirectories",
            ),
            (
                &["model_index.json"],
                &["unet"],
                &[],
                "it is a diffusers pipeline with unet/: load one of these subdirectories",
            ),
            (
                &["config.json", "pytorch_model.bin"],
                &[],
                &[],
                "\"pytorch_model.bin\" is a file of PyTorch: convert it to safetensors first",
            ),
            (
                &["consolidated.00.pth"],
                &["original", "hf"],
                &["hf"],
                "its subdirectories are hf/: load one of them",
            ),
            (
                &["llama.Q4_K_M.gguf"],
                &["notes"],
                &[],
                "\"llama.Q4_K_M.gguf\" is a file of llama.cpp: convert it to safetensors first",
            ),
            (
                &["m.tensors"],
                &[],
                &[],
                "\"m.tensors\" is a file of Tensorizer: pass its path",
            ),
            (
                &["a.txt"],
                &["b", "c"],
                &[],
                "its subdirectories are b/, c/: load one of them",
            ),
            (
                &["a.txt"],
                &[],
                &[],
                "pass the directory that contains the model's files, or a file",
            ),
        ] {
            let hint = hint(&texts(names), &texts(below), &texts(holding));
            assert_eq!(hint, wanted);
        }
        let many: Vec<String> = (0..10).map(|at| at.to_string()).collect();
        assert!(list(&many).ends_with("6/, 7/ and 2 more"));
    }

    #[test]
    fn message_counts_files_and_subdirectories() {
        let location = Location::from_path("a");
        let names = |count: usize| vec!["x".to_owned(); count];
        let message = |files, below| {
            let error = no_weights(&location, &names(files), &names(below), &[], &[]);
            error.message().to_owned()
        };
        assert_eq!(
            message(1, 3),
            "contains no *.safetensors among 1 file and 3 subdirectories"
        );
        assert_eq!(
            message(2, 1),
            "contains no *.safetensors among 2 files and 1 subdirectory"
        );
        assert_eq!(message(0, 0), "contains no *.safetensors among 0 files");
        let notes = ["1 name was left out".to_owned()];
        let error = no_weights(&location, &[], &[], &[], &notes);
        let hint =
            "1 name was left out; pass the directory that contains the model's files, or a file";
        assert_eq!(error.hint(), Some(hint));
    }
}
