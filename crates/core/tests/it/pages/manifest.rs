//! Manifest of a pod in `docs/deploy.md`, from the file that it quotes.

use tload_testbed::assert_recorded_between;

use crate::tidy::{root, text};

#[test]
fn page_quotes_the_manifest_of_a_pod() {
    let manifest = text(&root().join("deploy/kubernetes/pod.yaml"));
    assert_recorded_between(
        &root().join("docs/deploy.md"),
        "<!-- pod.yaml: begin -->\n",
        "<!-- pod.yaml: end -->",
        &format!("\n```yaml\n{manifest}```\n\n"),
    );
}
