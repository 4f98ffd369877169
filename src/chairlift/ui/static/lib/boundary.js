// Boundary: shows something else in place of children that could not be rendered; the rest of the page goes on.
import { Component } from "./html.js";

/** `fallback(again)` is shown until `value` is another one or `again` is called. */
export class Boundary extends Component {
  componentDidCatch() {
    this.setState({ isFailed: true, value: this.props.value });
  }

  render({ value, fallback, children }) {
    const isFailed = this.state.isFailed && this.state.value === value;
    return isFailed ? fallback(() => this.setState({ isFailed: false })) : children;
  }
}
