// The views in the order of the navigation: one line each. A view's module is loaded when it is opened.
// `services` are those that have the view; all have it without them.
// It exports `View`, a Preact component with the properties {api, settings}; see ../shell/shell.js.

export const VIEWS = [
  { id: "chat", title: "Chat", load: () => import("./chat.js") },
  { id: "batch", title: "Batch", load: () => import("./batch.js") },
  { id: "fleet", title: "Fleet", services: ["router"], load: () => import("./fleet.js") },
];

/** Return the views of the service behind the page, which the document names. */
export function viewsOfService() {
  const { service } = document.documentElement.dataset;
  return VIEWS.filter(({ services }) => !services || !service || services.includes(service));
}
