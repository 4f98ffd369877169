"""Training data: lists of common words that the conversations are made of; few, because the model must learn each."""

NOUNS = tuple(
    "apple arm army art baby bag ball bank barn basket bath beach bean bear bed bee bell bench bird boat body bone "
    "book boot bottle bowl box boy branch bread bridge brick brother brush bus bush butter button cab cable cake camp "
    "candle cap car card cart castle cat chain chair cheese child church city clock cloth cloud coat coin cook corn "
    "corner cow crowd crown cup curtain dance day desk dog door dress drum duck dust ear earth edge egg eye face farm "
    "feather fence field finger fire fish flag floor flower fog food foot forest fork fox friend frog fruit garden "
    "gate ghost gift girl glass glove goat gold grape grass guard guest hair hall hammer hand harbor hat hill hole "
    "honey hook horn horse hotel house ice iron island jacket jar jewel juice key king kitchen kite knee knife knot "
    "ladder lake lamp leaf leg lemon letter lift lion lock machine map market meal milk mill mine mirror money monkey "
    "moon morning mountain mouse mouth mug music nail neck needle nest net night nose note ocean office orange oven "
    "owl page paint pan paper park path pen pencil phone piano picture pig pillow pipe plane plant plate pocket poem "
    "pond pot potato queen rabbit radio rain ring river road robot rock roof room root rope rose sail salt sand "
    "school sea seat seed sheep shelf ship shirt shoe shop silver sister sky snake snow soap sock song soup spider "
    "spoon spring stage stair star station stone storm story street sugar sun swan table tail tea team tent thread "
    "ticket tiger tool tower town toy train tree truck tunnel uncle valley village voice wagon wall watch water wave "
    "wheel wind window wing winter wolf wood wool world yard year zebra".split()
)
ADJECTIVES = tuple(
    "angry big blue brave bright broken brown busy calm careful cheap clean clever cold cool dark deep dry early easy "
    "empty fair fast fat fine flat fresh full funny gentle glad golden good gray great green happy hard heavy high "
    "hot huge hungry kind large late lazy light little long loud lucky narrow neat new nice old pale pink plain poor "
    "proud purple quick quiet red rich rough round sad sharp short shy silent silver simple slow small smooth soft "
    "strange strong sweet tall thick thin tiny tired warm weak wet white wide wild wise yellow young".split()
)
VERBS = tuple(
    "bring build buy call carry catch clean climb close cook count cover cross cut dance draw dream drink drive drop "
    "eat fill find fix fly fold follow give help hide hold hunt jump keep kick lead learn leave lift look lose make "
    "meet move open paint pay pick plant play pull push read ride ring run save see sell send sing sit sleep smile "
    "speak stand start stop swim take talk teach tell think throw touch travel turn visit wait walk want wash watch "
    "wear win work write".split()
)
NAMES = tuple(
    "Ada Adam Aisha Alan Alice Amir Amy Ana Anders Anna Anton Arjun Arthur Astrid Ben Bella Boris Bruno Carla Carlos "
    "Cathy Chen Clara Daniel David Dana Diego Dora Elena Eli Ella Emil Emma Erik Eva Fatima Felix Finn Flora Frank "
    "Fred Gina Grace Greta Gus Hana Hans Harry Helen Henry Hugo Ida Ines Ingrid Irene Isaac Ivan Jack Jakob James "
    "Jana Jane Jonas Jorge Julia Kai Karen Karl Kate Kenji Kira Klaus Lara Laura Lena Leo Lily Linda Lisa Lola Louis "
    "Lucy Luis Maja Marco Maria Mark Marta Max Maya Mia Mila Mina Mona Nadia Nick Nina Noah Nora Olaf Oleg Olga Omar "
    "Oscar Otto Paul Pedro Peter Petra Rafael Rita Robert Rosa Ruth Sam Sara Sofia Stefan Susan Tara Tim Tina Tom "
    "Tony Uma Vera Victor Walter Wendy Yara Yuki Zara Zoe".split()
)
CITIES = tuple(
    "Amsterdam Athens Berlin Bern Boston Brussels Cairo Chicago Dublin Geneva Hamburg Helsinki Istanbul Kyoto Lima "
    "Lisbon London Lyon Madrid Milan Moscow Munich Nairobi Oslo Paris Porto Prague Quito Rome Seattle Seoul Sofia "
    "Stockholm Sydney Tokyo Toronto Turin Vienna Warsaw Zurich".split()
)
JOBS = tuple(
    "artist baker builder cook dancer doctor driver engineer farmer gardener guide judge lawyer nurse painter pilot "
    "poet sailor singer student teacher waiter writer".split()
)
SYLLABLES = tuple(
    "ba be bo bri da de do dra fa fe fo ga go gri ha hi ja jo ka ke ki ko la le li lo ma me mi mo na ne no pa pe po "
    "ra re ri ro sa se si so ta te ti to va ve vi vo za ze zo".split()
)
"""For words that nobody has seen before."""
