// The views in the order of the navigation: one line each. A view's module is loaded when it is opened.
// It exports `View`, a Preact component with the properties {api, settings}; see ../shell/shell.js.

export const VIEWS = [
  { id: "chat", title: "Chat", load: () => import("./chat.js") },
  { id: "batch", title: "Batch", load: () => import("./batch.js") },
  { id: "fleet", title: "Fleet", load: () => import("./fleet.js") },
];
