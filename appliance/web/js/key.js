// The dialog that asks for the API key.

import { askKey } from "./api.js";
import { $ } from "./dom.js";

/** The key that the person tells, or null. `wrong`: one was told before, and was not right. */
export function ask(wrong) {
  const dialog = $("ask-key");
  const field = $("key-value");
  $("key-wrong").hidden = !wrong;
  field.value = "";
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => resolve(dialog.returnValue === "ok" && field.value ? field.value : null),
      { once: true },
    );
    $("key-cancel").onclick = () => dialog.close("");
    dialog.returnValue = "";
    dialog.showModal();
    field.focus();
  });
}

ask.again = () => askKey(false);
