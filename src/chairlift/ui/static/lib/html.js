// The one import of Preact and htm: `html` makes elements, the hooks keep state.
import { Component, createElement, render } from "../vendor/preact-11.2.0.module.js";
import {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact-hooks-11.2.0.module.js";
import htm from "../vendor/htm-3.1.1.module.js";

export { Component, render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(createElement);

/** Render the component again after each change of an object with `changes`, which are Changes. */
export function useChanges(source) {
  const [, setCount] = useState(0);
  useEffect(() => {
    const renderAgain = () => setCount((count) => count + 1);
    const unsubscribe = source.changes.subscribe(renderAgain);
    renderAgain(); // an effect runs after the first rendering, and the object may have changed in between
    return unsubscribe;
  }, [source]);
}

/** Return a component that renders again only if one of its properties is another object. */
export function memo(render) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const names = new Set([...Object.keys(next), ...Object.keys(this.props)]);
      return [...names].some((name) => name !== "children" && next[name] !== this.props[name]);
    }

    render(props) {
      return render(props);
    }
  };
}
