// OtherTabs: tells the other tabs of this browser which conversation has changed, and hears it from them.
const NAME = "chairlift.conversations";

export class OtherTabs {
  /**
   * `onChange` gets {id, isRemoved, isRunning} of a conversation that another tab has changed, or {ids} of those that
   * it has imported.
   */
  constructor(onChange) {
    this.channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(NAME);
    if (this.channel) this.channel.onmessage = ({ data }) => onChange(data);
  }

  tell(change) {
    this.channel?.postMessage(change);
  }
}
