// Compiled by the tests. The line that the comment names is wrong on purpose.
import { Client } from "@penstock/client";
import { Approval, PenstockProvider, useApprovals, useRun } from "@penstock/react";

export function Page({ runId }: { runId: string }) {
  const { status, text, approvalId, cancel } = useRun(runId);
  const { approvals } = useApprovals({ agent: "assistant" });
  if (status === "completed") return <p onClick={() => void cancel()}>{text}</p>;
  if (approvalId === null) return <p>{approvals?.length}</p>;
  return (
    <PenstockProvider client={new Client()}>
      <Approval id={approvalId}>
        {({ approval, decide }) => <p onClick={() => void decide(true)}>{approval?.need}</p>}
      </Approval>
    </PenstockProvider>
  );
}

// @ts-expect-error: there is no such status
export const wrong = (runId: string) => useRun(runId).status === "done";
