-- +goose Up
-- One row for each sandbox. A row is written before its sandbox is made and
-- says that it is gone only after that was checked, so that whatever exists on
-- the host is claimed by a row.
CREATE TABLE sandboxes (
    id         TEXT PRIMARY KEY,
    state      TEXT NOT NULL CHECK (state IN ('Pending', 'Running', 'Pausing', 'Paused', 'Resuming', 'Stopping', 'Terminated', 'Failed')),
    reason     TEXT NOT NULL,
    message    TEXT NOT NULL,
    changed_at INTEGER NOT NULL, -- of state; times are Unix milliseconds
    created_at INTEGER NOT NULL,
    expires_at INTEGER,          -- NULL: no scheduled end
    spec       TEXT NOT NULL,    -- JSON; what a resume needs
    metadata   TEXT NOT NULL,    -- JSON object of strings

    -- of the create that made it
    idem_key TEXT,               -- NULL: none, or the create failed and may be tried again
    digest   TEXT NOT NULL,      -- of the request

    -- of the current run; zero when none runs
    pid     INTEGER NOT NULL,
    address TEXT NOT NULL,
    token   TEXT NOT NULL,
    boot_id TEXT NOT NULL,       -- the machine's, when the run began

    gone_at  INTEGER,            -- set: proven gone; state is Terminated or Failed
    evidence TEXT                -- JSON; what was removed and seen afterwards
) STRICT;

CREATE UNIQUE INDEX sandboxes_idem_key ON sandboxes (idem_key) WHERE idem_key IS NOT NULL;
CREATE INDEX sandboxes_live ON sandboxes (created_at, id) WHERE gone_at IS NULL;
CREATE INDEX sandboxes_expiry ON sandboxes (expires_at) WHERE gone_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX sandboxes_gone ON sandboxes (gone_at) WHERE gone_at IS NOT NULL;

-- +goose Down
DROP TABLE sandboxes;
