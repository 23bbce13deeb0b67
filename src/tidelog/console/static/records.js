// The pages of records: a file to import goes into the form, and a live list keeps its newest records only.
"use strict";
(() => {
  const base64 = (bytes) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return btoa(text);
  };
  document.addEventListener("change", async (event) => {
    if (!event.target.matches("[data-import]")) return;
    const file = event.target.files[0];
    if (!file) return;
    const form = event.target.form;
    const ending = file.name.split(".").pop().toLowerCase();
    const format = { csv: "csv", parquet: "parquet" }[ending] || "jsonl";
    form.elements.format.value = format;
    form.elements.data.value = format === "parquet" ? base64(new Uint8Array(await file.arrayBuffer())) : await file.text();
  });
  document.addEventListener("htmx:afterSwap", () => {
    const list = document.querySelector("[data-most]");
    if (!list) return;
    while (list.children.length > Number(list.dataset.most)) list.lastElementChild.remove();
  });
})();
