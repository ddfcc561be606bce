//! `encode`: prints tools in the format of a model API.

use serde_json::json;
use toolwright::models::dialect::translate;
use toolwright::models::tools_json;

use crate::args::{ApiName, Encode};
use crate::develop::tool_file::ToolFile;
use crate::exit::{Done, Exit};
use crate::terminal::screen::print_json;

/// `{tools, losses, names, quarantined}`. A tool that is left out is no failure: the answer says why.
pub(crate) fn command(encode: &Encode) -> Done {
    let ApiName(api) = encode.api;
    let file = ToolFile::read(&encode.tools)?;
    let set = translate(api.dialect(), &file.shown, encode.strict);
    print_json(&json!({
        "tools": tools_json(api, &set),
        "losses": set.losses,
        "names": file.names(),
        "quarantined": set.quarantined,
    }))?;
    Ok(Exit::Ok)
}
