// MarkdownText: a growing text as Markdown; only the block that grows is rendered again.
import { Component, html, useLayoutEffect, useMemo, useRef } from "../lib/html.js";
import { blocksOf, fragmentOf } from "../lib/markdown.js";

export function MarkdownText({ text, isRunning }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  // At the end all blocks are rendered once more: a link's address may be defined below it.
  return html`<div class="markdown" data-testid="markdown">
    ${blocks.map((block, index) => html`<${Block} key=${index} raw=${block.raw} block=${block}
      isRunning=${isRunning} />`)}
  </div>`;
}

class Block extends Component {
  shouldComponentUpdate(next) {
    return next.raw !== this.props.raw || next.isRunning !== this.props.isRunning;
  }

  render({ block }) {
    return html`<${Content} block=${block} />`;
  }
}

function Content({ block }) {
  const element = useRef();
  useLayoutEffect(() => {
    const parts = () => [...element.current.querySelectorAll("details")];
    const areOpen = parts().map(({ open }) => open); // what was opened stays so while the text grows
    element.current.replaceChildren(fragmentOf(block));
    parts().slice(0, areOpen.length).forEach((part, index) => { part.open = areOpen[index]; });
  }, [block]);
  return html`<div ref=${element} dir="auto"></div>`;
}
