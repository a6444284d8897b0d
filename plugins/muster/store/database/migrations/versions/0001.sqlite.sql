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
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	promoted_at DATETIME NOT NULL,
	agreed JSON NOT NULL,
	withdrawn_at DATETIME,
	ended_after INTEGER NOT NULL,
	withdrawn_by TEXT NOT NULL,
	withdrawn_login TEXT NOT NULL,
	withdrawn_reason TEXT NOT NULL,
	golden_id TEXT NOT NULL,
	"key" TEXT NOT NULL,
	op TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	digest TEXT NOT NULL
);
CREATE UNIQUE INDEX uq_goldens_golden_id_current ON goldens (golden_id) WHERE withdrawn_at IS NULL;
CREATE TABLE loaded_places (
	place TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since DATETIME NOT NULL,
	CONSTRAINT pk_loaded_places PRIMARY KEY (place)
);
CREATE TABLE nodes (
	name TEXT NOT NULL,
	host TEXT NOT NULL,
	port INTEGER NOT NULL,
	user TEXT NOT NULL,
	host_key TEXT NOT NULL,
	sku TEXT NOT NULL,
	state TEXT NOT NULL,
	launch JSON NOT NULL,
	work_dir TEXT NOT NULL,
	rack TEXT NOT NULL,
	pool TEXT NOT NULL,
	labels JSON NOT NULL,
	simulated BOOLEAN NOT NULL,
	added_at DATETIME NOT NULL,
	fence BIGINT NOT NULL,
	inconclusive INTEGER NOT NULL,
	contact_at DATETIME,
	machine INTEGER NOT NULL,
	machine_since DATETIME NOT NULL,
	environment JSON NOT NULL,
	shadow BOOLEAN NOT NULL,
	held_run TEXT NOT NULL,
	bmc JSON NOT NULL,
	paused_until DATETIME,
	paused_by TEXT NOT NULL,
	paused_for TEXT NOT NULL,
	lemon_since DATETIME,
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
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	"key" TEXT NOT NULL,
	message BLOB NOT NULL,
	created_at DATETIME NOT NULL,
	due_at DATETIME NOT NULL,
	sent_at DATETIME,
	retry_at DATETIME,
	parked_at DATETIME,
	claimed_until DATETIME,
	attempts INTEGER NOT NULL,
	last_error TEXT NOT NULL,
	recipients TEXT NOT NULL,
	lines JSON NOT NULL,
	CONSTRAINT uq_outbox_key UNIQUE ("key")
);
CREATE INDEX ix_outbox_unsent ON outbox (id) WHERE sent_at IS NULL;
CREATE TABLE parts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	kind TEXT NOT NULL,
	serial TEXT NOT NULL,
	first_seen DATETIME NOT NULL,
	CONSTRAINT uq_parts_kind_serial UNIQUE (kind, serial)
);
CREATE TABLE peer_snapshots (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	version TEXT NOT NULL,
	made_at DATETIME NOT NULL,
	sku TEXT NOT NULL,
	level TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	nodes INTEGER NOT NULL,
	data BLOB NOT NULL,
	CONSTRAINT uq_peer_snapshots_sku_level_simulated_version UNIQUE (sku, level, simulated, version)
);
CREATE TABLE racks_held (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	rack TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	codes JSON NOT NULL,
	why TEXT NOT NULL,
	nodes JSON NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since DATETIME NOT NULL,
	released_at DATETIME,
	person TEXT NOT NULL,
	reason TEXT NOT NULL
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
	kept_at DATETIME NOT NULL,
	content TEXT NOT NULL,
	CONSTRAINT pk_sku_revisions PRIMARY KEY (sku, revision)
);
CREATE TABLE bmcs (
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	keys JSON NOT NULL,
	logs JSON NOT NULL,
	present JSON NOT NULL,
	tried_at DATETIME,
	read_at DATETIME,
	CONSTRAINT pk_bmcs PRIMARY KEY (node),
	CONSTRAINT fk_bmcs_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE certificates (
	id TEXT NOT NULL,
	node TEXT NOT NULL,
	number INTEGER NOT NULL,
	machine INTEGER NOT NULL,
	issued_at DATETIME NOT NULL,
	expires_at DATETIME NOT NULL,
	verdict TEXT NOT NULL,
	tested_since DATETIME,
	certified JSON NOT NULL,
	revoked TEXT NOT NULL,
	revoked_at DATETIME,
	revoked_after INTEGER,
	document TEXT NOT NULL,
	public_key TEXT NOT NULL,
	CONSTRAINT pk_certificates PRIMARY KEY (id),
	CONSTRAINT uq_certificates_node_number UNIQUE (node, number),
	CONSTRAINT fk_certificates_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_certificates_unrevoked ON certificates (node, machine, expires_at) WHERE revoked = '';
CREATE TABLE digests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	subject TEXT NOT NULL,
	device TEXT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	seen_at DATETIME NOT NULL,
	golden_id TEXT NOT NULL,
	"key" TEXT NOT NULL,
	op TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	digest TEXT NOT NULL,
	CONSTRAINT fk_digests_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_digests_golden_id_subject ON digests (golden_id, subject);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	node TEXT,
	at DATETIME NOT NULL,
	from_state TEXT NOT NULL,
	to_state TEXT NOT NULL,
	actor TEXT NOT NULL,
	login TEXT NOT NULL,
	reason TEXT NOT NULL,
	evidence JSON NOT NULL,
	"after" BIGINT NOT NULL,
	CONSTRAINT fk_events_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_moves ON events (node, id) WHERE from_state != to_state;
CREATE INDEX ix_events_node ON events (node);
CREATE TABLE health (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
	rate DOUBLE,
	first_seen DATETIME NOT NULL,
	last_seen DATETIME NOT NULL,
	count INTEGER NOT NULL,
	recent JSON NOT NULL,
	most TEXT NOT NULL,
	action TEXT NOT NULL,
	due_at DATETIME NOT NULL,
	due_after INTEGER NOT NULL,
	acted TEXT NOT NULL,
	bad BOOLEAN,
	state_since DATETIME,
	state_at DATETIME,
	down_s DOUBLE NOT NULL,
	flaps INTEGER NOT NULL,
	over BOOLEAN NOT NULL,
	CONSTRAINT uq_health_node_machine_spell_part_check_boot_id_source UNIQUE (node, machine, spell, part, "check", boot_id, source),
	CONSTRAINT fk_health_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_health_last_seen ON health (last_seen);
CREATE INDEX ix_health_source ON health (node, machine, source, id);
CREATE TABLE incidents (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	fault_class TEXT NOT NULL,
	device TEXT NOT NULL,
	part TEXT NOT NULL,
	why TEXT NOT NULL,
	simulated BOOLEAN NOT NULL,
	prove JSON NOT NULL,
	level TEXT NOT NULL,
	opened_at DATETIME NOT NULL,
	"after" INTEGER NOT NULL,
	closed_at DATETIME,
	bundle TEXT NOT NULL,
	bundle_sha256 TEXT NOT NULL,
	bundle_bytes INTEGER NOT NULL,
	missing JSON NOT NULL,
	asks TEXT NOT NULL,
	waits TEXT NOT NULL,
	waits_at DATETIME,
	CONSTRAINT fk_incidents_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_incidents_node ON incidents (node);
CREATE INDEX ix_incidents_part ON incidents (part);
CREATE UNIQUE INDEX uq_incidents_open ON incidents (node, machine, fault_class, device, part) WHERE closed_at IS NULL;
CREATE TABLE leases (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	node TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	token BIGINT NOT NULL,
	acquired_at DATETIME NOT NULL,
	released_at DATETIME,
	CONSTRAINT uq_leases_node_token UNIQUE (node, token),
	CONSTRAINT fk_leases_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_leases_dag_id_run_id ON leases (dag_id, run_id);
CREATE UNIQUE INDEX uq_leases_node_live ON leases (node) WHERE released_at IS NULL;
CREATE TABLE placements (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	part_id INTEGER NOT NULL,
	node TEXT NOT NULL,
	slot TEXT NOT NULL,
	since DATETIME NOT NULL,
	seen_at DATETIME NOT NULL,
	until DATETIME,
	"after" BIGINT NOT NULL,
	until_after BIGINT,
	CONSTRAINT fk_placements_part_id_parts FOREIGN KEY(part_id) REFERENCES parts (id),
	CONSTRAINT fk_placements_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_placements_node ON placements (node);
CREATE INDEX ix_placements_part_id ON placements (part_id);
CREATE UNIQUE INDEX uq_placements_part_open ON placements (part_id) WHERE until IS NULL;
CREATE UNIQUE INDEX uq_placements_slot_open ON placements (node, slot) WHERE until IS NULL;
CREATE TABLE questions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	node TEXT NOT NULL,
	asked_at DATETIME NOT NULL,
	run_after DATETIME,
	about TEXT NOT NULL,
	subject TEXT NOT NULL,
	options JSON NOT NULL,
	mailed BOOLEAN NOT NULL,
	option TEXT NOT NULL,
	person TEXT NOT NULL,
	reason TEXT NOT NULL,
	answered_at DATETIME,
	settled_at DATETIME,
	CONSTRAINT uq_questions_dag_id_run_id UNIQUE (dag_id, run_id),
	CONSTRAINT fk_questions_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_questions_node ON questions (node);
CREATE TABLE runs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
	run_after DATETIME,
	started_at DATETIME NOT NULL,
	ended_at DATETIME,
	ended_place BIGINT NOT NULL,
	reported_at DATETIME,
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
	wanted_at DATETIME NOT NULL,
	done TEXT NOT NULL,
	done_at DATETIME,
	done_why TEXT NOT NULL,
	lifted TEXT NOT NULL,
	claimed_until DATETIME,
	attempts INTEGER NOT NULL,
	last_error TEXT NOT NULL,
	difference TEXT NOT NULL,
	question TEXT NOT NULL,
	verify TEXT NOT NULL,
	verify_since DATETIME,
	test_job TEXT NOT NULL,
	preempted BOOLEAN NOT NULL,
	shown TEXT NOT NULL,
	shown_since DATETIME,
	held_since DATETIME,
	CONSTRAINT pk_scheduler_places PRIMARY KEY (node),
	CONSTRAINT uq_scheduler_places_cluster_name UNIQUE (cluster, name),
	CONSTRAINT fk_scheduler_places_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE suspects (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	subject TEXT NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	device TEXT NOT NULL,
	stage TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	since DATETIME NOT NULL,
	finding_id TEXT NOT NULL,
	finding JSON NOT NULL,
	CONSTRAINT fk_suspects_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_suspects_node ON suspects (node);
CREATE INDEX ix_suspects_subject ON suspects (subject);
CREATE TABLE sweeps (
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	boot_id TEXT NOT NULL,
	kernel_s DOUBLE NOT NULL,
	counters JSON NOT NULL,
	swept_at DATETIME,
	CONSTRAINT pk_sweeps PRIMARY KEY (node),
	CONSTRAINT fk_sweeps_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE TABLE users_jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	node TEXT NOT NULL,
	cluster TEXT NOT NULL,
	what TEXT NOT NULL,
	since DATETIME NOT NULL,
	until DATETIME,
	listed_at DATETIME NOT NULL,
	CONSTRAINT uq_users_jobs_node_what_since UNIQUE (node, what, since),
	CONSTRAINT fk_users_jobs_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_users_jobs_cluster_until ON users_jobs (cluster, until);
CREATE TABLE waivers (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	rule TEXT NOT NULL,
	metric TEXT NOT NULL,
	device TEXT NOT NULL,
	severity TEXT NOT NULL,
	reason TEXT NOT NULL,
	person TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	until DATETIME NOT NULL,
	revoked_at DATETIME,
	end_seen BOOLEAN NOT NULL,
	finding_id TEXT NOT NULL,
	subject TEXT NOT NULL,
	labels JSON NOT NULL,
	observed TEXT NOT NULL,
	extents JSON NOT NULL,
	CONSTRAINT fk_waivers_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_waivers_node ON waivers (node);
CREATE INDEX ix_waivers_subject ON waivers (subject);
CREATE TABLE jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run INTEGER NOT NULL,
	stage TEXT NOT NULL,
	attempt_key TEXT NOT NULL,
	state TEXT NOT NULL,
	remote_dir TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	fence BIGINT NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	note TEXT NOT NULL,
	chassis TEXT NOT NULL,
	work TEXT NOT NULL,
	repeat_probes JSON NOT NULL,
	CONSTRAINT uq_jobs_run_stage_attempt_key UNIQUE (run, stage, attempt_key),
	CONSTRAINT fk_jobs_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE repair_attempts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	incident INTEGER NOT NULL,
	node TEXT NOT NULL,
	machine INTEGER NOT NULL,
	fault_class TEXT NOT NULL,
	device TEXT NOT NULL,
	part TEXT NOT NULL,
	rung TEXT NOT NULL,
	dag_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	reserved_at DATETIME NOT NULL,
	ended_at DATETIME,
	"after" INTEGER NOT NULL,
	outcome TEXT,
	detail TEXT NOT NULL,
	proved BOOLEAN,
	"before" TEXT NOT NULL,
	ordered TEXT NOT NULL,
	ordered_at DATETIME,
	CONSTRAINT fk_repair_attempts_incident_incidents FOREIGN KEY(incident) REFERENCES incidents (id),
	CONSTRAINT fk_repair_attempts_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_repair_attempts_incident ON repair_attempts (incident);
CREATE INDEX ix_repair_attempts_node ON repair_attempts (node);
CREATE INDEX ix_repair_attempts_part ON repair_attempts (part);
CREATE UNIQUE INDEX uq_repair_attempts_open ON repair_attempts (node) WHERE ended_at IS NULL;
CREATE TABLE round_sides (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	why TEXT NOT NULL,
	figures JSON NOT NULL,
	evidence JSON NOT NULL,
	CONSTRAINT uq_round_sides_run_number UNIQUE (run, number),
	CONSTRAINT fk_round_sides_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE rounds (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	kind TEXT NOT NULL,
	pairs JSON NOT NULL,
	variants INTEGER NOT NULL,
	reference_pairs INTEGER NOT NULL,
	planned_at DATETIME NOT NULL,
	CONSTRAINT uq_rounds_run_number UNIQUE (run, number),
	CONSTRAINT fk_rounds_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE stages (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run INTEGER NOT NULL,
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
	recorded_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	job_end TEXT NOT NULL,
	agent_sha256 TEXT NOT NULL,
	probes JSON NOT NULL,
	environment JSON NOT NULL,
	charts JSON NOT NULL,
	result_sha256 TEXT NOT NULL,
	snapshot TEXT NOT NULL,
	origin BIGINT NOT NULL,
	CONSTRAINT fk_stages_run_runs FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE,
	CONSTRAINT fk_stages_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_stages_in_order ON stages (node, machine, stage, origin) WHERE current = 1;
CREATE INDEX ix_stages_node ON stages (node, id);
CREATE INDEX ix_stages_of_machine ON stages (node, machine, stage, level, verdict, id) WHERE current = 1;
CREATE INDEX ix_stages_recorded_at ON stages (recorded_at);
CREATE INDEX ix_stages_run ON stages (run);
CREATE INDEX ix_stages_snapshot ON stages (snapshot);
CREATE UNIQUE INDEX uq_stages_run_stage_current ON stages (run, stage) WHERE current = 1;
CREATE TABLE artifacts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	stage INTEGER NOT NULL,
	kind TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	data BLOB NOT NULL,
	CONSTRAINT uq_artifacts_stage_kind UNIQUE (stage, kind),
	CONSTRAINT fk_artifacts_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE
);
CREATE INDEX ix_artifacts_created_at ON artifacts (created_at);
CREATE TABLE findings (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	stage INTEGER NOT NULL,
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
	confidence DOUBLE NOT NULL,
	finding_id TEXT NOT NULL,
	waived TEXT NOT NULL,
	measurements JSON NOT NULL,
	variant TEXT NOT NULL,
	extent JSON NOT NULL,
	CONSTRAINT fk_findings_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE,
	CONSTRAINT fk_findings_node_nodes FOREIGN KEY(node) REFERENCES nodes (name)
);
CREATE INDEX ix_findings_finding_id ON findings (finding_id);
CREATE INDEX ix_findings_node ON findings (node);
CREATE INDEX ix_findings_stage ON findings (stage);
CREATE TABLE measurements (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	stage INTEGER NOT NULL,
	probe TEXT NOT NULL,
	metric TEXT NOT NULL,
	device TEXT NOT NULL,
	unit TEXT NOT NULL,
	value DOUBLE,
	text TEXT,
	labels JSON NOT NULL,
	samples BIGINT NOT NULL,
	spread DOUBLE,
	note TEXT NOT NULL,
	judged INTEGER,
	floor DOUBLE,
	ceiling DOUBLE,
	source TEXT NOT NULL,
	ok BOOLEAN,
	CONSTRAINT fk_measurements_stage_stages FOREIGN KEY(stage) REFERENCES stages (id) ON DELETE CASCADE
);
CREATE INDEX ix_measurements_stage_metric ON measurements (stage, metric);
