// Starts the page.
import { Api } from "./lib/api.js";
import { html, render } from "./lib/html.js";
import { Keys } from "./lib/keys.js";
import { ServerState } from "./shell/server_state.js";
import { Shell } from "./shell/shell.js";

const keys = new Keys();
const api = new Api(keys);
const server = new ServerState(api);
server.start();
render(html`<${Shell} api=${api} keys=${keys} server=${server} />`, document.getElementById("app"));
