import { describe, expect, it } from "vitest";
import { enrolCommands } from "./enrol";

describe("the commands that enrol a node", () => {
  it("name the server by its socket, and the node and segment that the token is bound to", () => {
    const lines = enrolCommands("https://h.example", { token: "holdfast_join_jt_1_x", segment: "rack-7", name: "" }).split("\n");
    expect(lines).toEqual(["umask 077", "printf '%s\\n' 'holdfast_join_jt_1_x' > join-token", "python -m agents --server wss://h.example --join-token-file join-token --segment rack-7"]);
    expect(enrolCommands("http://127.0.0.1:8420", { token: "t", segment: "", name: "gpu-1" })).toMatch(/--server ws:\/\/127\.0\.0\.1:8420 --join-token-file join-token --name gpu-1$/);
  });
});
