CREATE TABLE audit_cursors (
	sink TEXT NOT NULL,
	event BIGINT NOT NULL,
	last_error TEXT NOT NULL,
	CONSTRAINT pk_audit_cursors PRIMARY KEY (sink)
);
CREATE TABLE fleet_numbers (
	simulated BOOLEAN NOT NULL,
	content TEXT NOT NULL,
	CONSTRAINT pk_fleet_numbers PRIMARY KEY (simulated)
);
CREATE TABLE goldens (
	id BIGSERIAL NOT NULL,
	promoted_at TIMESTAMP WITH TIME ZONE NOT NULL,
	agreed JSON NOT NULL,
	withdrawn_at TIMESTAMP WITH TIME ZONE,
	ended_after BIGINT NOT NULL,
	withdrawn_by TEXT NOT NULL,
	withdrawn_login TEXT NOT NULL,
	withdrawn_reason TEXT NOT NULL,
	golden_id TEXT NOT NULL,
	key TEXT NOT NULL,
	op TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	digest TEXT NOT NULL,
	CONSTRAINT pk_goldens PRIMARY KEY (id)
);
CREATE UNIQUE INDEX uq_goldens_golden_id_current ON goldens (golden_id) WHERE withdrawn_at IS NULL;
CREATE TABLE loaded_places (
	place TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_loaded_places PRIMARY KEY (place)
);
CREATE TABLE nodes (
	name TEXT NOT NULL,
	host TEXT NOT NULL,
	port INTEGER NOT NULL,
	"user" TEXT NOT NULL,
	host_key TEXT NOT NULL,
	sku TEXT NOT NULL,
	state TEXT NOT NULL,
	launch JSON NOT NULL,
	work_dir TEXT NOT NULL,
	rack TEXT NOT NULL,
	pool TEXT NOT NULL,
	labels JSON NOT NULL,
	simulated BOOLEAN NOT NULL,
	added_at TIMESTAMP WITH TIME ZONE NOT NULL,
	fence BIGINT NOT NULL,
	inconclusive INTEGER NOT NULL,
	contact_at TIMESTAMP WITH TIME ZONE,
	machine INTEGER NOT NULL,
	machine_since TIMESTAMP WITH TIME ZONE NOT NULL,
	environment JSON NOT NULL,
	shadow BOOLEAN NOT NULL,
	held_run TEXT NOT NULL,
	bmc JSON NOT NULL,
	paused_until TIMESTAMP WITH TIME ZONE,
	paused_by TEXT NOT NULL,
	paused_for TEXT NOT NULL,
	lemon_since TIMESTAMP WITH TIME ZONE,
	lemon_by TEXT NOT NULL,
	lemon_for TEXT NOT NULL,
	accepted BIGINT NOT NULL,
	kept BIGINT NOT NULL,
	repaired BIGINT NOT NULL,
	sku_after BIGINT NOT NULL,
	machine_event BIGINT NOT NULL,
	spell INTEGER NOT NULL,
	placed INTEGER NOT NULL,
	remarked INTEGER NOT NULL,
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
CREATE INDEX ix_nodes_state ON nodes (state);
CREATE UNIQUE INDEX uq_nodes_host_key ON nodes (host_key) WHERE state != 'retired';
CREATE TABLE outbox (
	id BIGSERIAL NOT NULL,
	key TEXT NOT NULL,
	message BYTEA NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	due_at TIMESTAMP WITH TIME ZONE NOT NULL,
	sent_at TIMESTAMP WITH TIME ZONE,
	retry_at TIMESTAMP WITH TIME ZONE,
	parked_at TIMESTAMP WITH TIME ZONE,
	claimed_until TIMESTAMP WITH TIME ZONE,
	attempts INTEGER NOT NULL,
	last_error TEXT NOT NULL,
	recipients TEXT NOT NULL,
	lines JSON NOT NULL,
	CONSTRAINT pk_outbox PRIMARY KEY (id),
	CONSTRAINT uq_outbox_key UNIQUE (key)
);
CREATE INDEX ix_outbox_unsent ON outbox (id) WHERE sent_at IS NULL;
CREATE TABLE parts (
	id BIGSERIAL NOT NULL,
	kind TEXT NOT NULL,
	serial TEXT NOT NULL,
	first_seen TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_parts PRIMARY KEY (id),
	CONSTRAINT uq_parts_kind_serial UNIQUE (kind, serial)
);
CREATE TABLE peer_snapshots (
	id BIGSERIAL NOT NULL,
	version TEXT NOT NULL,
	made_at TIMESTAMP WITH TIME ZONE NOT NULL,
	sku TEXT NOT NULL,
	level TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	nodes INTEGER NOT NULL,
	data BYTEA NOT NULL,
	CONSTRAINT pk_peer_snapshots PRIMARY KEY (id),
	CONSTRAINT uq_peer_snapshots_sku_level_simulated_version UNIQUE (sku, level, simulated, version)
);
CREATE TABLE racks_held (
	id BIGSERIAL NOT NULL,
	rack TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	codes JSON NOT NULL,
	why TEXT NOT NULL,
	nodes JSON NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since TIMESTAMP WITH TIME ZONE NOT NULL,
	released_at TIMESTAMP WITH TIME ZONE,
	person TEXT NOT NULL,
	reason TEXT NOT NULL,
	CONSTRAINT pk_racks_held PRIMARY KEY (id)
);
CREATE UNIQUE INDEX uq_racks_held_live ON racks_held (rack, simulated) WHERE released_at IS NULL;
CREATE TABLE risk_models (
	day TEXT NOT NULL,
	content TEXT NOT NULL,
	CONSTRAINT pk_risk_models PRIMARY KEY (day)
);
CREATE TABLE sku_revisions (
	sku TEXT NOT NULL,
	revision TEXT NOT NULL,
	kept_at TIMESTAMP WITH TIME ZONE NOT NULL,
	content TEXT NOT NULL,
	CONSTRAINT pk_sku_revisions PRIMARY KEY (sku, revision)
);
CREATE TABLE bmcs (
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	keys JSON NOT NULL,
	logs JSON NOT NULL,
	present JSON NOT NULL,
	tried_at TIMESTAMP WITH TIME ZONE,
	read_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_bmcs PRIMARY KEY (node),
	CONSTRAINT fk_bmcs_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE certificates (
	id TEXT NOT NULL,
	node TEXT NOT NULL,
	number INTEGER NOT NULL,
	machine INTEGER NOT NULL,
	issued_at TIMESTAMP WITH TIME ZONE NOT NULL,
	expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
	verdict TEXT NOT NULL,
	tested_since TIMESTAMP WITH TIME ZONE,
	certified JSON NOT NULL,
	revoked TEXT NOT NULL,
	revoked_at TIMESTAMP WITH TIME ZONE,
	revoked_after BIGINT,
	document TEXT NOT NULL,
	public_key TEXT NOT NULL,
	CONSTRAINT pk_certificates PRIMARY KEY (id),
	CONSTRAINT uq_certificates_node_number UNIQUE (node, number),
	CONSTRAINT fk_certificates_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_certificates_unrevoked ON certificates (node, machine, expires_at) WHERE revoked = '';
CREATE TABLE digests (
	id BIGSERIAL NOT NULL,
	subject TEXT NOT NULL,
	device TEXT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
	golden_id TEXT NOT NULL,
	key TEXT NOT NULL,
	op TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	digest TEXT NOT NULL,
	CONSTRAINT pk_digests PRIMARY KEY (id),
	CONSTRAINT fk_digests_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_digests_golden_id_subject ON digests (golden_id, subject);
CREATE TABLE events (
	id BIGSERIAL NOT NULL,
	node TEXT,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	from_state TEXT NOT NULL,
	to_state TEXT NOT NULL,
	actor TEXT NOT NULL,
	login TEXT NOT NULL,
	reason TEXT NOT NULL,
	evidence JSON NOT NULL,
	after BIGINT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT fk_events_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_moves ON events (node, id) WHERE from_state != to_state;
CREATE INDEX ix_events_node ON events (node);
CREATE TABLE health (
	id BIGSERIAL NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	spell INTEGER NOT NULL,
	part TEXT NOT NULL,
	device TEXT NOT NULL,
	"check" TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	source TEXT NOT NULL,
	value TEXT NOT NULL,
	severity TEXT NOT NULL,
	rate DOUBLE PRECISION,
	first_seen TIMESTAMP WITH TIME ZONE NOT NULL,
	last_seen TIMESTAMP WITH TIME ZONE NOT NULL,
	count BIGINT NOT NULL,
	recent JSON NOT NULL,
	most TEXT NOT NULL,
	action TEXT NOT NULL,
	due_at TIMESTAMP WITH TIME ZONE NOT NULL,
	due_after BIGINT NOT NULL,
	acted TEXT NOT NULL,
	bad BOOLEAN,
	state_since TIMESTAMP WITH TIME ZONE,
	state_at TIMESTAMP WITH TIME ZONE,
	down_s DOUBLE PRECISION NOT NULL,
	flaps INTEGER NOT NULL,
	"over" BOOLEAN NOT NULL,
	CONSTRAINT pk_health PRIMARY KEY (id),
	CONSTRAINT uq_health_node_machine_spell_part_check_boot_id_source UNIQUE (node, machine, spell, part, "check", boot_id, source),
	CONSTRAINT fk_health_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_health_last_seen ON health (last_seen);
CREATE INDEX ix_health_source ON health (node, machine, source, id);
CREATE TABLE incidents (
	id BIGSERIAL NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	fault_class TEXT NOT NULL,
	device TEXT NOT NULL,
	part TEXT NOT NULL,
	why TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	prove JSON NOT NULL,
	level TEXT NOT NULL,
	opened_at TIMESTAMP WITH TIME ZONE NOT NULL,
	after BIGINT NOT NULL,
	closed_at TIMESTAMP WITH TIME ZONE,
	bundle TEXT NOT NULL,
	bundle_sha256 TEXT NOT NULL,
	bundle_bytes BIGINT NOT NULL,
	missing JSON NOT NULL,
	asks TEXT NOT NULL,
	waits TEXT NOT NULL,
	waits_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_incidents PRIMARY KEY (id),
	CONSTRAINT fk_incidents_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_incidents_node ON incidents (node);
CREATE INDEX ix_incidents_part ON incidents (part);
CREATE UNIQUE INDEX uq_incidents_open ON incidents (node, machine, fault_class, device, part) WHERE closed_at IS NULL;
CREATE TABLE leases (
	id BIGSERIAL NOT NULL,
	node TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	token BIGINT NOT NULL,
	acquired_at TIMESTAMP WITH TIME ZONE NOT NULL,
	released_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_leases PRIMARY KEY (id),
	CONSTRAINT uq_leases_node_token UNIQUE (node, token),
	CONSTRAINT fk_leases_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_leases_dag_id_run_id ON leases (dag_id, run_id);
CREATE UNIQUE INDEX uq_leases_node_live ON leases (node) WHERE released_at IS NULL;
CREATE TABLE placements (
	id BIGSERIAL NOT NULL,
	part_id BIGINT NOT NULL,
	node TEXT NOT NULL,
	slot TEXT NOT NULL,
	since TIMESTAMP WITH TIME ZONE NOT NULL,
	seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
	until TIMESTAMP WITH TIME ZONE,
	after BIGINT NOT NULL,
	until_after BIGINT,
	CONSTRAINT pk_placements PRIMARY KEY (id),
	CONSTRAINT fk_placements_part_id_parts FOREIGN KEY(part_id) REFERENCES parts (id),
	CONSTRAINT fk_placements_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_placements_node ON placements (node);
CREATE INDEX ix_placements_part_id ON placements (part_id);
CREATE UNIQUE INDEX uq_placements_part_open ON placements (part_id) WHERE until IS NULL;
CREATE UNIQUE INDEX uq_placements_slot_open ON placements (node, slot) WHERE until IS NULL;
CREATE TABLE questions (
	id BIGSERIAL NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	node TEXT NOT NULL,
	asked_at TIMESTAMP WITH TIME ZONE NOT NULL,
	run_after TIMESTAMP WITH TIME ZONE,
	about TEXT NOT NULL,
	subject TEXT NOT NULL,
	options JSON NOT NULL,
	mailed BOOLEAN NOT NULL,
	option TEXT NOT NULL,
	person TEXT NOT NULL,
	reason TEXT NOT NULL,
	answered_at TIMESTAMP WITH TIME ZONE,
	settled_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_questions PRIMARY KEY (id),
	CONSTRAINT uq_questions_dag_id_run_id UNIQUE (dag_id, run_id),
	CONSTRAINT fk_questions_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_questions_node ON questions (node);
CREATE TABLE runs (
	id BIGSERIAL NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	sku TEXT NOT NULL,
	level TEXT NOT NULL,
	reason TEXT NOT NULL,
	forced TEXT,
	started_by TEXT NOT NULL,
	required_stages JSON NOT NULL,
	state_before TEXT NOT NULL,
	state_after TEXT,
	verdict TEXT,
	headline TEXT NOT NULL,
	why_held TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	identity JSON NOT NULL,
	environment JSON NOT NULL,
	faults JSON NOT NULL,
	spent JSON NOT NULL,
	block JSON NOT NULL,
	run_after TIMESTAMP WITH TIME ZONE,
	started_at TIMESTAMP WITH TIME ZONE NOT NULL,
	ended_at TIMESTAMP WITH TIME ZONE,
	ended_place BIGINT NOT NULL,
	reported_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT uq_runs_dag_id_run_id_node UNIQUE (dag_id, run_id, node),
	CONSTRAINT fk_runs_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_runs_ended_at ON runs (ended_at);
CREATE INDEX ix_runs_node_ended_at ON runs (node, ended_at);
CREATE INDEX ix_runs_node_ended_place ON runs (node, ended_place, id);
CREATE INDEX ix_runs_node_machine ON runs (node, machine);
CREATE INDEX ix_runs_started_at ON runs (started_at);
CREATE TABLE scheduler_places (
	node TEXT NOT NULL,
	cluster TEXT NOT NULL,
	name TEXT NOT NULL,
	wanted TEXT NOT NULL,
	why TEXT NOT NULL,
	wanted_at TIMESTAMP WITH TIME ZONE NOT NULL,
	done TEXT NOT NULL,
	done_at TIMESTAMP WITH TIME ZONE,
	done_why TEXT NOT NULL,
	lifted TEXT NOT NULL,
	claimed_until TIMESTAMP WITH TIME ZONE,
	attempts INTEGER NOT NULL,
	last_error TEXT NOT NULL,
	difference TEXT NOT NULL,
	question TEXT NOT NULL,
	verify TEXT NOT NULL,
	verify_since TIMESTAMP WITH TIME ZONE,
	test_job TEXT NOT NULL,
	preempted BOOLEAN NOT NULL,
	shown TEXT NOT NULL,
	shown_since TIMESTAMP WITH TIME ZONE,
	held_since TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_scheduler_places PRIMARY KEY (node),
	CONSTRAINT uq_scheduler_places_cluster_name UNIQUE (cluster, name),
	CONSTRAINT fk_scheduler_places_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE suspects (
	id BIGSERIAL NOT NULL,
	subject TEXT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	device TEXT NOT NULL,
	stage TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since TIMESTAMP WITH TIME ZONE NOT NULL,
	finding_id TEXT NOT NULL,
	finding JSON NOT NULL,
	CONSTRAINT pk_suspects PRIMARY KEY (id),
	CONSTRAINT fk_suspects_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_suspects_node ON suspects (node);
CREATE INDEX ix_suspects_subject ON suspects (subject);
CREATE TABLE sweeps (
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	boot_id TEXT NOT NULL,
	kernel_s DOUBLE PRECISION NOT NULL,
	counters JSON NOT NULL,
	swept_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_sweeps PRIMARY KEY (node),
	CONSTRAINT fk_sweeps_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE users_jobs (
	id BIGSERIAL NOT NULL,
	node TEXT NOT NULL,
	cluster TEXT NOT NULL,
	what TEXT NOT NULL,
	since TIMESTAMP WITH TIME ZONE NOT NULL,
	until TIMESTAMP WITH TIME ZONE,
	listed_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_users_jobs PRIMARY KEY (id),
	CONSTRAINT uq_users_jobs_node_what_since UNIQUE (node, what, since),
	CONSTRAINT fk_users_jobs_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_users_jobs_cluster_until ON users_jobs (cluster, until);
CREATE TABLE waivers (
	id BIGSERIAL NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	rule TEXT NOT NULL,
	metric TEXT NOT NULL,
	device TEXT NOT NULL,
	severity TEXT NOT NULL,
	reason TEXT NOT NULL,
	person TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	until TIMESTAMP WITH TIME ZONE NOT NULL,
	revoked_at TIMESTAMP WITH TIME ZONE,
	end_seen BOOLEAN NOT NULL,
	finding_id TEXT NOT NULL,
	subject TEXT NOT NULL,
	labels JSON NOT NULL,
	observed TEXT NOT NULL,
	extents JSON NOT NULL,
	CONSTRAINT pk_waivers PRIMARY KEY (id),
	CONSTRAINT fk_waivers_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_waivers_node ON waivers (node);
CREATE INDEX ix_waivers_subject ON waivers (subject);
CREATE TABLE jobs (
	id BIGSERIAL NOT NULL,
	run BIGINT NOT NULL,
	stage TEXT NOT NULL,
	attempt_key TEXT NOT NULL,
	state TEXT NOT NULL,
	remote_dir TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	fence BIGINT NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	note TEXT NOT NULL,
	chassis TEXT NOT NULL,
	work TEXT NOT NULL,
	repeat_probes JSON NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id),
	CONSTRAINT uq_jobs_run_stage_attempt_key UNIQUE (run, stage, attempt_key),
	CONSTRAINT fk_jobs_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE repair_attempts (
	id BIGSERIAL NOT NULL,
	incident BIGINT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	fault_class TEXT NOT NULL,
	device TEXT NOT NULL,
	part TEXT NOT NULL,
	rung TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	reserved_at TIMESTAMP WITH TIME ZONE NOT NULL,
	ended_at TIMESTAMP WITH TIME ZONE,
	after BIGINT NOT NULL,
	outcome TEXT,
	detail TEXT NOT NULL,
	proved BOOLEAN,
	before TEXT NOT NULL,
	ordered TEXT NOT NULL,
	ordered_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_repair_attempts PRIMARY KEY (id),
	CONSTRAINT fk_repair_attempts_incident_incidents FOREIGN KEY(incident) REFERENCES incidents (id),
	CONSTRAINT fk_repair_attempts_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_repair_attempts_incident ON repair_attempts (incident);
CREATE INDEX ix_repair_attempts_node ON repair_attempts (node);
CREATE INDEX ix_repair_attempts_part ON repair_attempts (part);
CREATE UNIQUE INDEX uq_repair_attempts_open ON repair_attempts (node) WHERE ended_at IS NULL;
CREATE TABLE round_sides (
	id BIGSERIAL NOT NULL,
	run BIGINT NOT NULL,
	number INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	why TEXT NOT NULL,
	figures JSON NOT NULL,
	evidence JSON NOT NULL,
	CONSTRAINT pk_round_sides PRIMARY KEY (id),
	CONSTRAINT uq_round_sides_run_number UNIQUE (run, number),
	CONSTRAINT fk_round_sides_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE rounds (
	id BIGSERIAL NOT NULL,
	run BIGINT NOT NULL,
	number INTEGER NOT NULL,
	kind TEXT NOT NULL,
	pairs JSON NOT NULL,
	variants INTEGER NOT NULL,
	reference_pairs INTEGER NOT NULL,
	planned_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_rounds PRIMARY KEY (id),
	CONSTRAINT uq_rounds_run_number UNIQUE (run, number),
	CONSTRAINT fk_rounds_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE stages (
	id BIGSERIAL NOT NULL,
	run BIGINT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	stage TEXT NOT NULL,
	level TEXT NOT NULL,
	current BOOLEAN NOT NULL,
	verdict TEXT NOT NULL,
	reason TEXT NOT NULL,
	required INTEGER NOT NULL,
	measured INTEGER NOT NULL,
	judged INTEGER NOT NULL,
	missing JSON NOT NULL,
	unjudged JSON NOT NULL,
	sku TEXT NOT NULL,
	sku_version TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	notes JSON NOT NULL,
	attempts INTEGER NOT NULL,
	recorded_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	job_end TEXT NOT NULL,
	agent_sha256 TEXT NOT NULL,
	probes JSON NOT NULL,
	environment JSON NOT NULL,
	charts JSON NOT NULL,
	result_sha256 TEXT NOT NULL,
	snapshot TEXT NOT NULL,
	origin BIGINT NOT NULL,
	CONSTRAINT pk_stages PRIMARY KEY (id),
	CONSTRAINT fk_stages_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE,
	CONSTRAINT fk_stages_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_stages_in_order ON stages (node, machine, stage, origin) WHERE current;
CREATE INDEX ix_stages_node ON stages (node, id);
CREATE INDEX ix_stages_of_machine ON stages (node, machine, stage, level, verdict, id) WHERE current;
CREATE INDEX ix_stages_recorded_at ON stages (recorded_at);
CREATE INDEX ix_stages_run ON stages (run);
CREATE INDEX ix_stages_snapshot ON stages (snapshot);
CREATE UNIQUE INDEX uq_stages_run_stage_current ON stages (run, stage) WHERE current;
CREATE TABLE artifacts (
	id BIGSERIAL NOT NULL,
	stage BIGINT NOT NULL,
	kind TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	data BYTEA NOT NULL,
	CONSTRAINT pk_artifacts PRIMARY KEY (id),
	CONSTRAINT uq_artifacts_stage_kind UNIQUE (stage, kind),
	CONSTRAINT fk_artifacts_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE
);
CREATE INDEX ix_artifacts_created_at ON artifacts (created_at);
CREATE TABLE findings (
	id BIGSERIAL NOT NULL,
	stage BIGINT NOT NULL,
	node TEXT NOT NULL,
	rule TEXT NOT NULL,
	metric TEXT NOT NULL,
	device TEXT NOT NULL,
	severity TEXT NOT NULL,
	fault_class TEXT NOT NULL,
	action TEXT NOT NULL,
	observed TEXT NOT NULL,
	expected TEXT NOT NULL,
	source TEXT NOT NULL,
	summary TEXT NOT NULL,
	labels JSON NOT NULL,
	confidence DOUBLE PRECISION NOT NULL,
	finding_id TEXT NOT NULL,
	waived TEXT NOT NULL,
	measurements JSON NOT NULL,
	variant TEXT NOT NULL,
	extent JSON NOT NULL,
	CONSTRAINT pk_findings PRIMARY KEY (id),
	CONSTRAINT fk_findings_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE,
	CONSTRAINT fk_findings_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_findings_finding_id ON findings (finding_id);
CREATE INDEX ix_findings_node ON findings (node);
CREATE INDEX ix_findings_stage ON findings (stage);
CREATE TABLE measurements (
	id BIGSERIAL NOT NULL,
	stage BIGINT NOT NULL,
	probe TEXT NOT NULL,
	metric TEXT NOT NULL,
	device TEXT NOT NULL,
	unit TEXT NOT NULL,
	value DOUBLE PRECISION,
	text TEXT,
	labels JSON NOT NULL,
	samples BIGINT NOT NULL,
	spread DOUBLE PRECISION,
	note TEXT NOT NULL,
	judged INTEGER,
	floor DOUBLE PRECISION,
	ceiling DOUBLE PRECISION,
	source TEXT NOT NULL,
	ok BOOLEAN,
	CONSTRAINT pk_measurements PRIMARY KEY (id),
	CONSTRAINT fk_measurements_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE
);
CREATE INDEX ix_measurements_stage_metric ON measurements (stage, metric);
