-- Times are milliseconds since 1970, 0 for none. The types are ones that
-- SQLite and PostgreSQL both read the same way.

-- +goose Up
CREATE TABLE environments (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  spec       TEXT NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE TABLE agents (
  id          TEXT PRIMARY KEY,
  name        TEXT NOT NULL UNIQUE,
  environment TEXT NOT NULL REFERENCES environments (name),
  description TEXT NOT NULL,
  created_at  BIGINT NOT NULL
);

CREATE TABLE conversations (
  id                  TEXT PRIMARY KEY,
  title               TEXT NOT NULL,
  agent               TEXT NOT NULL,
  environment         TEXT NOT NULL,
  idempotency_key     TEXT UNIQUE,
  request_digest      TEXT NOT NULL DEFAULT '',
  state               TEXT NOT NULL,
  version             BIGINT NOT NULL DEFAULT 1,
  fence               BIGINT NOT NULL DEFAULT 0,
  runtime             TEXT NOT NULL,
  runtime_reason      TEXT NOT NULL DEFAULT '',
  runtime_since       BIGINT NOT NULL,
  backend             TEXT NOT NULL DEFAULT '',
  assignment_id       TEXT NOT NULL DEFAULT '',
  sandbox_id          TEXT NOT NULL DEFAULT '',
  expires_at          BIGINT NOT NULL DEFAULT 0,
  active_at           BIGINT NOT NULL DEFAULT 0,
  due_at              BIGINT NOT NULL DEFAULT 0,
  last_seq            BIGINT NOT NULL DEFAULT 0,
  destroyed_sandbox   TEXT NOT NULL DEFAULT '',
  destruction_outcome TEXT NOT NULL DEFAULT '',
  destruction_detail  TEXT NOT NULL DEFAULT '',
  created_at          BIGINT NOT NULL,
  updated_at          BIGINT NOT NULL
);
CREATE INDEX conversations_due ON conversations (due_at) WHERE due_at > 0;
CREATE INDEX conversations_runtime ON conversations (runtime) WHERE runtime NOT IN ('none', 'paused', 'lost');
CREATE INDEX conversations_sandbox ON conversations (sandbox_id) WHERE sandbox_id <> '';
CREATE INDEX conversations_deleting ON conversations (id) WHERE state = 'deleting';

CREATE TABLE turns (
  id                TEXT PRIMARY KEY,
  conversation_id   TEXT NOT NULL REFERENCES conversations (id),
  client_message_id TEXT NOT NULL,
  text              TEXT NOT NULL,
  state             TEXT NOT NULL,
  error_code        TEXT NOT NULL DEFAULT '',
  error_message     TEXT NOT NULL DEFAULT '',
  accepted_seq      BIGINT NOT NULL,
  created_at        BIGINT NOT NULL,
  interrupted_at    BIGINT NOT NULL DEFAULT 0,
  ended_at          BIGINT NOT NULL DEFAULT 0,
  UNIQUE (conversation_id, client_message_id)
);
-- One turn at a time is a rule of the data, not only of the code.
CREATE UNIQUE INDEX turns_in_progress ON turns (conversation_id) WHERE state IN ('delivering', 'running', 'interrupting');
CREATE INDEX turns_queued ON turns (conversation_id, accepted_seq) WHERE state = 'queued';

CREATE TABLE events (
  conversation_id TEXT NOT NULL REFERENCES conversations (id),
  seq             BIGINT NOT NULL,
  type            TEXT NOT NULL,
  turn_id         TEXT NOT NULL,
  at              BIGINT NOT NULL,
  data            TEXT NOT NULL,
  PRIMARY KEY (conversation_id, seq)
);

-- The Agent program's process of a conversation, and how far it was read and
-- written. outbox are the stdin bytes from offset stdin_at on that may not have
-- arrived yet.
CREATE TABLE programs (
  conversation_id TEXT PRIMARY KEY REFERENCES conversations (id),
  program         TEXT NOT NULL,
  generation      BIGINT NOT NULL,
  process_id      TEXT NOT NULL,
  output_at       BIGINT NOT NULL,
  machine         TEXT NOT NULL,
  stdin_at        BIGINT NOT NULL,
  outbox          BYTEA NOT NULL,
  native_session  TEXT NOT NULL,
  ready_by        BIGINT NOT NULL,
  failures        BIGINT NOT NULL
);

-- The stored beginning of an output line that is too long to wait for its end.
CREATE TABLE program_lines (
  conversation_id TEXT NOT NULL REFERENCES conversations (id),
  start_at        BIGINT NOT NULL,
  data            BYTEA NOT NULL,
  PRIMARY KEY (conversation_id, start_at)
);

CREATE TABLE assignments (
  id              TEXT PRIMARY KEY,
  conversation_id TEXT NOT NULL REFERENCES conversations (id),
  backend         TEXT NOT NULL,
  spec            TEXT NOT NULL,
  digest          TEXT NOT NULL,
  state           TEXT NOT NULL,
  sandbox_id      TEXT NOT NULL DEFAULT '',
  error           TEXT NOT NULL DEFAULT '',
  created_at      BIGINT NOT NULL,
  ended_at        BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX assignments_open ON assignments (id) WHERE ended_at = 0;

-- The ledger: every sandbox that is to be destroyed, until and after the proof.
CREATE TABLE destructions (
  backend         TEXT NOT NULL,
  sandbox_id      TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  reason          TEXT NOT NULL,
  outcome         TEXT NOT NULL DEFAULT '',
  detail          TEXT NOT NULL DEFAULT '',
  attempts        BIGINT NOT NULL DEFAULT 0,
  due_at          BIGINT NOT NULL,
  created_at      BIGINT NOT NULL,
  ended_at        BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (backend, sandbox_id)
);
CREATE INDEX destructions_open ON destructions (due_at) WHERE ended_at = 0;

CREATE TABLE terminals (
  id              TEXT PRIMARY KEY,
  conversation_id TEXT NOT NULL REFERENCES conversations (id),
  sandbox_id      TEXT NOT NULL,
  process_id      TEXT NOT NULL,
  state           TEXT NOT NULL,
  reason          TEXT NOT NULL DEFAULT '',
  created_at      BIGINT NOT NULL
);
CREATE INDEX terminals_of ON terminals (conversation_id, id);
